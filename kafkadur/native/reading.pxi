# Records, and the client that reads them.

#: Messages of librdkafka that records keep, or that wait to be freed.
cdef Py_ssize_t _kept = 0


def kept():
    """Return how many messages of librdkafka are kept for records in this process: for tests."""
    return _kept


@cython.final
@cython.no_gc
cdef class _Handle:
    """One client of librdkafka, and the list of the records that keep a message of it."""

    cdef rd_kafka_t *rk
    cdef str topic
    cdef int generation
    #: the last record of the list; records are linked with one another, without counted references
    cdef void *last
    #: whether a record with headers was ever read
    cdef bint headed
    #: messages of records that are gone: the next read frees them, without Python's lock
    cdef rd_kafka_message_t **_gone
    cdef Py_ssize_t _gone_count
    #: as much room, of which a read frees messages
    cdef rd_kafka_message_t **_freed
    #: whether messages are freed at once: no read follows soon
    cdef bint _rests

    cdef inline void drop(self, rd_kafka_message_t *message) noexcept:
        """Free a message, now or with the next read."""
        global _kept
        if self._rests or self._gone_count == _GONE or self.rk == NULL or not self._has_room():
            _kept -= 1
            message_destroy(message)
        else:
            self._gone[self._gone_count] = message
            self._gone_count += 1

    cdef inline bint _has_room(self) noexcept:
        if self._gone == NULL:
            self._gone = <rd_kafka_message_t **>malloc(_GONE * sizeof(rd_kafka_message_t *))
            self._freed = <rd_kafka_message_t **>malloc(_GONE * sizeof(rd_kafka_message_t *))
        return self._gone != NULL and self._freed != NULL

    cdef Py_ssize_t take_gone(self, rd_kafka_message_t ***into) noexcept:
        """Hand out the messages to be freed before the next call; returns how many."""
        global _kept
        cdef Py_ssize_t count = self._gone_count
        into[0] = self._gone
        self._gone, self._freed = self._freed, self._gone
        self._gone_count = 0
        self._rests = False
        _kept -= count
        return count

    cdef void rest(self) noexcept:
        """Free what is to be freed, and free at once until the next read."""
        global _kept
        cdef Py_ssize_t index
        self._rests = True
        for index in range(self._gone_count):
            message_destroy(self._gone[index])
        _kept -= self._gone_count
        self._gone_count = 0

    cdef void end(self):
        """Detach all records, and end the client."""
        cdef rd_kafka_t *rk = self.rk
        if rk == NULL or self.generation != _generation:  # a forked child has none of the client's threads
            return
        while self.last != NULL:
            (<Record>self.last)._readers = 0  # the client ends, whoever reads
            (<Record>self.last).detach()
        self.rk = NULL
        self.rest()
        with nogil:
            rd_destroy(rk, _NO_CLOSE)

    def __dealloc__(self):
        self.end()
        free(self._gone)
        free(self._freed)


@cython.final
@cython.no_gc
@cython.freelist(4000)
cdef class Record:
    """A record, or an event such as the end of a partition, with the methods of confluent-kafka's Message."""

    # first what is looked at when others wait: it fits into one line of a cache
    cdef rd_kafka_message_t *_message
    cdef Py_ssize_t _size
    cdef int64_t _offset
    cdef int32_t _partition
    cdef _Handle _handle
    #: the neighbours in the list of the handle, until `detach`
    cdef void *_before
    cdef void *_after
    #: after `detach`: value, key, headers, timestamp, leader epoch, error
    cdef tuple _parts
    #: calls that read the message just now: it is not detached meanwhile
    cdef int _readers

    def __dealloc__(self):
        if self._message != NULL and self._handle.generation == _generation:
            self._unlink()
            self._handle.drop(self._message)

    cdef inline void _unlink(self):
        if self._before != NULL:
            (<Record>self._before)._after = self._after
        if self._after != NULL:
            (<Record>self._after)._before = self._before
        else:
            self._handle.last = self._before

    def __len__(self):
        return self._size

    def topic(self):
        """Name of the topic."""
        return self._handle.topic

    def partition(self):
        """Number of the partition."""
        return self._partition

    def offset(self):
        """The offset; None: of an event that has none."""
        return None if self._offset < 0 else self._offset

    cpdef value(self):
        """The payload; None: there is none."""
        if self._message == NULL:
            return self._parts[0]
        if self._message.payload == NULL or self._message.err:
            return None
        return PyBytes_FromStringAndSize(<char *>self._message.payload, <Py_ssize_t>self._message.len)

    cpdef key(self):
        """The key; None: there is none."""
        if self._message == NULL:
            return self._parts[1]
        if self._message.key == NULL:
            return None
        return PyBytes_FromStringAndSize(<char *>self._message.key, <Py_ssize_t>self._message.key_len)

    def error(self):
        """The error or event; None: this is a record."""
        if self._message == NULL:
            return self._parts[5]
        if self._message.err == 0:
            return None
        if self._message.payload == NULL:
            return KafkaError(self._message.err)
        text = (<char *>self._message.payload)[: self._message.len]
        return KafkaError(self._message.err, text.decode(errors="replace"))

    def timestamp(self):
        """Type of the time, and ms since 1970."""
        cdef int kind
        cdef int64_t at
        if self._message == NULL:
            return self._parts[3]
        at = message_timestamp(self._message, &kind)
        return (kind, 0 if kind == _NO_TIMESTAMP else at)

    def leader_epoch(self):
        """Leader epoch; None: it is not known."""
        cdef int32_t epoch
        if self._message == NULL:
            return self._parts[4]
        epoch = message_leader_epoch(self._message)
        return None if epoch < 0 else epoch

    def headers(self):
        """Names and values of the headers; None: there are none."""
        cdef rd_kafka_headers_t *headers
        cdef const char *name
        cdef const void *value
        cdef size_t size
        cdef size_t index = 0
        if self._message == NULL:
            return self._parts[2]
        if message_headers(self._message, &headers):
            return None
        found = []
        self._readers += 1  # making objects may let another thread run
        try:
            while header_get_all(headers, index, &name, &value, &size) == 0:
                content = None
                if value != NULL:
                    content = PyBytes_FromStringAndSize(<const char *>value, <Py_ssize_t>size)
                # Kafka takes any bytes as a name
                found.append(((<bytes>name).decode(errors="replace"), content))
                index += 1
        finally:
            self._readers -= 1
        return found

    def latency(self):
        """None, as of every consumed message."""
        return None

    def detach(self):
        """Copy the parts, and free librdkafka's message: it keeps the whole answer of Kafka it came in."""
        global _kept
        cdef rd_kafka_message_t *message = self._message
        if message == NULL or self._readers:
            return
        parts = (self.value(), self.key(), self.headers(), self.timestamp(), self.leader_epoch(), self.error())
        if self._message == NULL:  # another thread was faster
            return
        self._parts = parts
        self._unlink()
        _kept -= 1
        self._message = NULL
        message_destroy(message)

    def as_message(self):
        """Return a confluent-kafka Message of the same content."""
        return Message(
            topic=self.topic(),
            partition=self._partition,
            offset=self._offset,
            key=self.key(),
            value=self.value(),
            headers=self.headers(),
            error=self.error(),
            timestamp=self.timestamp(),
            leader_epoch=self.leader_epoch(),
        )

    def __repr__(self):
        return f"<Record {self.topic()}[{self._partition}]@{self._offset}>"


cdef void _free(rd_kafka_message_t **messages, Py_ssize_t count) noexcept nogil:
    """Free messages of records that are gone."""
    cdef Py_ssize_t index
    for index in range(count):
        message_destroy(messages[index])


cdef class Consumer(_Client):
    """The methods of confluent-kafka's Consumer that the readers use. One thread uses it at a time."""

    cdef _Handle _handle
    cdef rd_kafka_queue_t *_queue
    cdef rd_kafka_message_t *_read[_MOST]
    cdef bint _closed

    def __init__(self, config, *, logger, topic):
        """`config` has texts, numbers and bools, and perhaps `error_cb`; `topic` is the one that is read.

        Raises KafkaException for a setting that librdkafka refuses, ValueError for one that only
        confluent-kafka takes: another callable.
        """
        config = dict(config)
        self._on_error = config.pop("error_cb", None)
        self._logger = logger
        self._handle = _Handle()
        self._handle.generation = _generation
        self._handle.topic = topic
        self._handle.rk = self._made(_CONSUMER, config, conf_new())
        poll_set_consumer(self._handle.rk)
        self._queue = queue_get_consumer(self._handle.rk)

    def __dealloc__(self):
        if self._queue != NULL and self._handle.generation == _generation:
            queue_destroy(self._queue)

    # -- reading

    def consume(self, most, timeout):
        """Return at most so many records and events; wait at most `timeout` seconds for the last of them."""
        cdef size_t limit = min(most, _MOST)
        cdef int ms = <int>(timeout * 1000)
        cdef ssize_t count
        cdef bint headed = self._handle.headed
        self._check_open()
        cdef rd_kafka_message_t **gone
        cdef Py_ssize_t gone_count = self._handle.take_gone(&gone)
        with nogil:
            _free(gone, gone_count)
            count = consume_batch(self._queue, ms, self._read, limit)
            headed = headed or self._have_headers(count)
        self._handle.headed = headed
        found = self._records(count)
        self._raise()
        return found

    def read(self, most, timeout, list into):
        """Add what is there, at most so many records and events; wait at most `timeout` seconds for one.

        No signal handler runs between the moment they leave the queue and the moment they are in the list.
        """
        cdef size_t limit = min(most, _MOST)
        cdef int ms = <int>(timeout * 1000)
        cdef ssize_t count
        cdef ssize_t more
        cdef bint headed = self._handle.headed
        self._check_open()
        cdef rd_kafka_message_t **gone
        cdef Py_ssize_t gone_count = self._handle.take_gone(&gone)
        with nogil:
            _free(gone, gone_count)
            count = consume_batch(self._queue, ms, self._read, 1)
            if count == 1:
                more = consume_batch(self._queue, 0, self._read + 1, limit - 1)
                if more > 0:
                    count += more
            headed = headed or self._have_headers(count)
        self._handle.headed = headed
        into += self._records(count)
        self._raise()

    cdef bint _have_headers(self, ssize_t count) noexcept nogil:
        """Whether one of the messages that were read last has headers."""
        cdef rd_kafka_headers_t *headers
        cdef ssize_t index
        for index in range(count):
            if self._read[index].err == 0 and message_headers(self._read[index], &headers) == 0:
                return True
        return False

    cdef list _records(self, ssize_t count):
        """Return the messages that were read last, as records."""
        cdef ssize_t index
        cdef Record record
        cdef rd_kafka_message_t *message
        cdef _Handle handle = self._handle
        cdef list found
        global _kept
        found = [None] * max(count, 0)
        for index in range(count):
            message = self._read[index]
            record = Record.__new__(Record)
            record._message = message
            record._handle = handle
            record._partition = message.partition
            record._offset = message.offset
            record._size = 0 if message.err else <Py_ssize_t>message.len
            record._before = handle.last
            if handle.last != NULL:
                (<Record>handle.last)._after = <void *>record
            handle.last = <void *>record
            found[index] = record
        _kept += max(count, 0)
        return found

    def poll(self, timeout):
        """Wait for one record or event; None: none came."""
        found = self.consume(1, timeout)
        return found[0] if found else None

    def rest(self):
        """Keep no messages of records that are dropped before the next read. Any thread."""
        self._handle.rest()

    def wake(self):
        """Have the call that waits for records return, or the next one that would. Any thread."""
        if not self._closed:
            queue_yield(self._queue)

    # -- partitions

    cdef rd_kafka_topic_partition_list_t *_list(self, places) except NULL:
        cdef rd_kafka_topic_partition_list_t *made = list_new(len(places))
        cdef rd_kafka_topic_partition_t *added
        cdef bytes metadata
        for place in places:
            added = list_add(made, place.topic.encode(), place.partition)
            added.offset = place.offset
            if place.leader_epoch is not None:
                set_leader_epoch(added, place.leader_epoch)
            if place.metadata is not None:
                # with the zero byte at its end, as confluent-kafka does: without it clients that read it back
                # read on behind its end
                metadata = place.metadata.encode()
                added.metadata_size = len(metadata) + 1
                added.metadata = malloc(len(metadata) + 1)
                memcpy(added.metadata, <char *>metadata, len(metadata) + 1)
        return made

    cdef list _places(self, rd_kafka_topic_partition_list_t *found):
        return [
            TopicPartition(
                found.elems[index].topic.decode(),
                found.elems[index].partition,
                found.elems[index].offset,
                leader_epoch=get_leader_epoch(&found.elems[index]),
            )
            for index in range(found.cnt)
        ]

    def incremental_assign(self, places):
        """Read these partitions, too, from their offsets on."""
        self._assign(places, True)

    def incremental_unassign(self, places):
        """Do not read these partitions any more."""
        self._assign(places, False)

    cdef _assign(self, places, bint more):
        cdef rd_kafka_error_t *error
        self._check_open()
        cdef rd_kafka_topic_partition_list_t *made = self._list(places)
        with nogil:
            if more:
                error = rd_incremental_assign(self._handle.rk, made)
            else:
                error = rd_incremental_unassign(self._handle.rk, made)
            list_destroy(made)
        _check(error)

    def assignment(self):
        """The partitions that are read."""
        cdef rd_kafka_topic_partition_list_t *found
        self._check_open()
        cdef int code = rd_assignment(self._handle.rk, &found)
        if code:
            raise _failed(code)
        try:
            return self._places(found)
        finally:
            list_destroy(found)

    def position(self, places):
        """The offsets behind the records that were read."""
        self._check_open()
        cdef rd_kafka_topic_partition_list_t *made = self._list(places)
        cdef int code
        with nogil:
            code = rd_position(self._handle.rk, made)
        try:
            if code:
                raise _failed(code)
            return self._places(made)
        finally:
            list_destroy(made)

    def get_watermark_offsets(self, place, timeout=-1, cached=False):
        """First and end offset of a partition, as Kafka said last if `cached`."""
        cdef int64_t low = 0
        cdef int64_t high = 0
        cdef int code
        cdef int ms = <int>(timeout * 1000)
        cdef bint known = cached
        self._check_open()
        cdef bytes topic = place.topic.encode()
        cdef const char *name = topic
        cdef int32_t partition = place.partition
        with nogil:
            if known:
                code = get_watermarks(self._handle.rk, name, partition, &low, &high)
            else:
                code = query_watermarks(self._handle.rk, name, partition, &low, &high, ms)
        if code:
            raise _failed(code)
        return low, high

    def list_topics(self, topic=None, timeout=-1):
        """Ask for metadata; raises KafkaException if no broker answers in time."""
        self._check_open()
        _ask(self._handle.rk, topic, timeout)

    def commit(self, *, offsets, asynchronous):
        """Commit offsets; without waiting if `asynchronous`."""
        cdef int code
        cdef bint later = asynchronous
        self._check_open()
        cdef rd_kafka_topic_partition_list_t *made = self._list(offsets)
        with nogil:
            code = rd_commit(self._handle.rk, made, later)
            list_destroy(made)
        if code:
            raise _failed(code)

    def close(self):
        """Stop reading, wait for commits under way, and end the client. Records stay what they are."""
        if self._closed:
            return
        self._closed = True
        with nogil:
            consumer_close(self._handle.rk)
        if self._queue != NULL:
            queue_destroy(self._queue)
            self._queue = NULL
        self._handle.end()
        self._on_error = self._logger = None  # they may lead back here

    cdef _check_open(self):
        if self._closed:
            raise RuntimeError("Consumer closed")


cdef inline void _fetch_ahead(list records, Py_ssize_t at) noexcept:
    """Have the memory of the next records brought near: another core wrote it, and waiting for it takes long."""
    cdef Py_ssize_t count = len(records)
    cdef object record
    cdef rd_kafka_message_t *message
    if at + 3 * _AHEAD < count:
        prefetch(<const void *>records[at + 3 * _AHEAD])
    if at + 2 * _AHEAD < count:
        record = records[at + 2 * _AHEAD]
        if type(record) is Record:
            prefetch((<Record>record)._message)
    if at + _AHEAD < count:
        record = records[at + _AHEAD]
        if type(record) is Record:
            message = (<Record>record)._message
            if message != NULL:
                prefetch(message.payload)
                prefetch(<const char *>message.payload + 64)


def values(list records):
    """Return the payloads of records."""
    cdef Py_ssize_t at
    cdef list found = [None] * len(records)
    for at in range(len(records)):
        _fetch_ahead(records, at)
        found[at] = (<Record?>records[at]).value()
    return found


def size_of(list records):
    """Return the bytes of the payloads of records."""
    cdef Py_ssize_t at
    cdef Py_ssize_t size = 0
    for at in range(len(records)):
        if at + 2 * _AHEAD < len(records):
            prefetch(<const void *>records[at + 2 * _AHEAD])
        size += (<Record?>records[at])._size
    return size


def by_partition(list records):
    """Split records and events by partition; third: whether events are among those of a partition.

    The order within a partition is kept.
    """
    cdef Record record
    cdef int32_t last = -1
    cdef list into = None
    cdef dict found = {}
    cdef set eventful = None
    for record in records:
        if record._partition != last or into is None:
            last = record._partition
            into = found.get(last)
            if into is None:
                into = found[last] = []
        into.append(record)
        if record._message != NULL and record._message.err:
            if eventful is None:
                eventful = set()
            eventful.add(last)
    if eventful is None:
        return [(partition, some, False) for partition, some in found.items()]
    return [(partition, some, partition in eventful) for partition, some in found.items()]


cdef object _last_header(const rd_kafka_headers_t *headers, const char *name):
    cdef const void *value
    cdef size_t size
    if header_get_last(headers, name, &value, &size) or value == NULL:
        return None
    return PyBytes_FromStringAndSize(<const char *>value, <Py_ssize_t>size)


def with_headers(list records, bytes first, bytes second):
    """Return the values of two headers of the records that have one of them: index -> (value, value)."""
    cdef const char *first_name = first
    cdef const char *second_name = second
    cdef rd_kafka_headers_t *headers
    cdef const void *value
    cdef size_t size
    cdef Record record
    cdef Py_ssize_t index = -1
    cdef dict found = {}
    if records and not (<Record?>records[0])._handle.headed:  # all are of one client
        return found
    for record in records:
        index += 1
        if record._message == NULL:
            last = dict(record.headers() or ())
            values = (last.get(first.decode()), last.get(second.decode()))
            if values != (None, None):
                found[index] = values
        elif message_headers(record._message, &headers) == 0 and (
            header_get_last(headers, first_name, &value, &size) == 0
            or header_get_last(headers, second_name, &value, &size) == 0
        ):
            found[index] = (_last_header(headers, first_name), _last_header(headers, second_name))
    return found


