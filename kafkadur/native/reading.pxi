# Records, and the client that reads them. A call reads blocks, each of one partition; a record is a place in one.

#: Messages of librdkafka that records keep, or that wait to be freed.
cdef Py_ssize_t _kept = 0


def kept():
    """Return how many messages of librdkafka are kept for records in this process: for tests."""
    return _kept


cdef void _free(rd_kafka_message_t **messages, Py_ssize_t count) noexcept nogil:
    """Free messages of records that are gone."""
    cdef Py_ssize_t index
    for index in range(count):
        message_destroy(messages[index])


@cython.final
@cython.no_gc
cdef class _Handle:
    """One client of librdkafka, and the list of the blocks that keep messages of it."""

    cdef rd_kafka_t *rk
    cdef str topic
    cdef int generation
    #: the last block of the list; blocks are linked with one another, without counted references
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
        if self._rests or self._gone_count == _GONE or not self._has_room():
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
        self._rests = True
        _free(self._gone, self._gone_count)
        _kept -= self._gone_count
        self._gone_count = 0

    cdef void end(self):
        """Detach all records, and end the client."""
        cdef rd_kafka_t *rk = self.rk
        cdef _Block block
        if rk == NULL or self.generation != _generation:  # a forked child has none of the client's threads
            return
        while self.last != NULL:
            block = <_Block>self.last
            block.readers = 0  # the client ends, whoever reads
            block.detach(0, block.count)
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
cdef class _Block:
    """Messages of librdkafka that one call has read from one partition, one after the other.

    Each is freed when it is not used any more: by a `Records`, a `Record` or a delivery.
    """

    #: NULL: those that were freed
    cdef rd_kafka_message_t **messages
    #: how many use each
    cdef int32_t *uses
    #: the difference of two of them is the bytes of the payloads between; one more than messages
    cdef int64_t *sizes
    cdef Py_ssize_t count
    #: messages that were not freed
    cdef Py_ssize_t kept
    cdef int32_t partition
    #: whether there are events among them
    cdef bint eventful
    cdef _Handle handle
    #: the neighbours in the list of the handle, until all messages were freed
    cdef void *before
    cdef void *after
    #: of messages that were detached: value, key, headers, timestamp, leader epoch, error, offset
    cdef dict parts
    #: calls that read a message just now: none is detached meanwhile
    cdef int readers

    def __dealloc__(self):
        free(self.messages)
        free(self.uses)
        free(self.sizes)

    cdef int fill(self, _Handle handle, rd_kafka_message_t **messages, const int64_t *sizes, Py_ssize_t count) except -1:
        """Take over these messages, of one partition."""
        global _kept
        cdef Py_ssize_t at
        self.messages = <rd_kafka_message_t **>malloc(count * sizeof(rd_kafka_message_t *))
        self.uses = <int32_t *>calloc(count, sizeof(int32_t))
        self.sizes = <int64_t *>malloc((count + 1) * sizeof(int64_t))
        if self.messages == NULL or self.uses == NULL or self.sizes == NULL:
            raise MemoryError
        memcpy(self.messages, messages, count * sizeof(rd_kafka_message_t *))
        memcpy(self.sizes, sizes, (count + 1) * sizeof(int64_t))
        self.count = self.kept = count
        self.partition = messages[0].partition
        for at in range(count):
            if messages[at].err:
                self.eventful = True
                break
        self.handle = handle
        self.before = handle.last
        if self.before != NULL:
            (<_Block>self.before).after = <void *>self
        handle.last = <void *>self
        _kept += count
        return 0

    cdef inline void use(self, Py_ssize_t start, Py_ssize_t end) noexcept:
        """Keep messages [start, end) until `leave`."""
        cdef Py_ssize_t at
        for at in range(start, end):
            self.uses[at] += 1

    cdef inline void leave(self, Py_ssize_t start, Py_ssize_t end) noexcept:
        """Messages [start, end) are not used any more here: free those that nothing else uses."""
        cdef Py_ssize_t at
        cdef rd_kafka_message_t *message
        for at in range(start, end):
            self.uses[at] -= 1
            if self.uses[at] == 0:
                message = self.messages[at]
                if message != NULL and self.handle.generation == _generation:
                    self._forget(at)
                    self.handle.drop(message)

    cdef inline void _forget(self, Py_ssize_t at) noexcept:
        self.messages[at] = NULL
        self.kept -= 1
        if self.kept == 0:
            self._unlink()

    cdef void _unlink(self) noexcept:
        if self.before != NULL:
            (<_Block>self.before).after = self.after
        if self.after != NULL:
            (<_Block>self.after).before = self.before
        else:
            self.handle.last = self.before

    cdef int64_t offset(self, Py_ssize_t at):
        """The offset; negative: of an event that has none."""
        return self.parts[at][6] if self.messages[at] == NULL else self.messages[at].offset

    cdef inline value(self, Py_ssize_t at):
        """The payload; None: there is none."""
        cdef rd_kafka_message_t *message = self.messages[at]
        if message == NULL:
            return self.parts[at][0]
        if message.payload == NULL or message.err:
            return None
        return PyBytes_FromStringAndSize(<char *>message.payload, <Py_ssize_t>message.len)

    cdef key(self, Py_ssize_t at):
        """The key; None: there is none."""
        cdef rd_kafka_message_t *message = self.messages[at]
        if message == NULL:
            return self.parts[at][1]
        if message.key == NULL:
            return None
        return PyBytes_FromStringAndSize(<char *>message.key, <Py_ssize_t>message.key_len)

    cdef headers(self, Py_ssize_t at):
        """Names and values of the headers; None: there are none."""
        cdef rd_kafka_headers_t *headers
        cdef const char *name
        cdef const void *value
        cdef size_t size
        cdef size_t index = 0
        if self.messages[at] == NULL:
            return self.parts[at][2]
        if message_headers(self.messages[at], &headers):
            return None
        found = []
        self.readers += 1  # making objects may let another thread run
        try:
            while header_get_all(headers, index, &name, &value, &size) == 0:
                content = None
                if value != NULL:
                    content = PyBytes_FromStringAndSize(<const char *>value, <Py_ssize_t>size)
                # Kafka takes any bytes as a name
                found.append(((<bytes>name).decode(errors="replace"), content))
                index += 1
        finally:
            self.readers -= 1
        return found

    cdef timestamp(self, Py_ssize_t at):
        """Type of the time, and ms since 1970."""
        cdef int kind
        cdef int64_t time
        if self.messages[at] == NULL:
            return self.parts[at][3]
        time = message_timestamp(self.messages[at], &kind)
        return (kind, 0 if kind == _NO_TIMESTAMP else time)

    cdef leader_epoch(self, Py_ssize_t at):
        """Leader epoch; None: it is not known."""
        cdef int32_t epoch
        if self.messages[at] == NULL:
            return self.parts[at][4]
        epoch = message_leader_epoch(self.messages[at])
        return None if epoch < 0 else epoch

    cdef error(self, Py_ssize_t at):
        """The error or event; None: this is a record."""
        cdef rd_kafka_message_t *message = self.messages[at]
        if message == NULL:
            return self.parts[at][5]
        if message.err == 0:
            return None
        if message.payload == NULL:
            return KafkaError(message.err)
        text = (<char *>message.payload)[: message.len]
        return KafkaError(message.err, text.decode(errors="replace"))

    cdef void detach(self, Py_ssize_t start, Py_ssize_t end):
        """Copy the parts of messages [start, end), and free them: each keeps the answer of Kafka it came in."""
        global _kept
        cdef Py_ssize_t at
        cdef rd_kafka_message_t *message
        for at in range(start, end):
            message = self.messages[at]
            if message == NULL:
                continue
            if self.readers:
                return
            parts = (
                self.value(at), self.key(at), self.headers(at), self.timestamp(at), self.leader_epoch(at),
                self.error(at), self.offset(at),
            )
            if self.messages[at] == NULL:  # another thread was faster
                continue
            if self.parts is None:
                self.parts = {}
            self.parts[at] = parts
            self._forget(at)
            _kept -= 1
            message_destroy(message)


@cython.final
@cython.no_gc
@cython.freelist(1000)
cdef class Record:
    """A record, or an event such as the end of a partition, with the methods of confluent-kafka's Message."""

    #: None only of an object that Python code has made
    cdef _Block _block
    cdef Py_ssize_t _at

    def __init__(self):
        raise TypeError("records are read")

    def __dealloc__(self):
        if self._block is not None:
            self._block.leave(self._at, self._at + 1)

    def __len__(self):
        return self._block.sizes[self._at + 1] - self._block.sizes[self._at]

    def topic(self):
        """Name of the topic."""
        return self._block.handle.topic

    def partition(self):
        """Number of the partition."""
        return self._block.partition

    def offset(self):
        """The offset; None: of an event that has none."""
        cdef int64_t offset = self._block.offset(self._at)
        return None if offset < 0 else offset

    def value(self):
        """The payload; None: there is none."""
        return self._block.value(self._at)

    def key(self):
        """The key; None: there is none."""
        return self._block.key(self._at)

    def error(self):
        """The error or event; None: this is a record."""
        return self._block.error(self._at)

    def timestamp(self):
        """Type of the time, and ms since 1970."""
        return self._block.timestamp(self._at)

    def leader_epoch(self):
        """Leader epoch; None: it is not known."""
        return self._block.leader_epoch(self._at)

    def headers(self):
        """Names and values of the headers; None: there are none."""
        return self._block.headers(self._at)

    def latency(self):
        """None, as of every consumed message."""
        return None

    def as_message(self):
        """Return a confluent-kafka Message of the same content."""
        return Message(
            topic=self.topic(),
            partition=self.partition(),
            offset=self.offset(),
            key=self.key(),
            value=self.value(),
            headers=self.headers(),
            error=self.error(),
            timestamp=self.timestamp(),
            leader_epoch=self.leader_epoch(),
        )

    def __repr__(self):
        return f"<Record {self.topic()}[{self.partition()}]@{self.offset()}>"


cdef inline Record _record(_Block block, Py_ssize_t at):
    cdef Record made = Record.__new__(Record)
    made._block = block
    made._at = at
    block.use(at, at + 1)
    return made


@cython.final
@cython.no_gc
cdef class Records:
    """Records and events of one partition, in order: as a list of `Record`, which are made when they are used.

    A slice is one as well. Only the first or the last ones can be deleted.
    """

    cdef _Block _block
    cdef Py_ssize_t _start
    cdef Py_ssize_t _end

    def __init__(self):
        raise TypeError("records are read")

    def __dealloc__(self):
        if self._block is not None:
            self._block.leave(self._start, self._end)

    def __len__(self):
        return self._end - self._start

    def __getitem__(self, index):
        cdef Py_ssize_t at
        if isinstance(index, slice):
            start, stop, step = index.indices(self._end - self._start)
            if step != 1:
                raise ValueError("a slice of records has no step")
            return _records(self._block, self._start + start, self._start + max(start, stop))
        at = index
        if at < 0:
            at += self._end - self._start
        if at < 0 or at >= self._end - self._start:
            raise IndexError(index)
        return _record(self._block, self._start + at)

    def __delitem__(self, index):
        start, stop, step = index.indices(self._end - self._start)
        if step != 1 or (start > 0 and stop < self._end - self._start):
            raise ValueError("only the first or the last records can be deleted")
        if start == 0:
            start, self._start = self._start, self._start + stop
            self._block.leave(start, self._start)
        else:
            stop, self._end = self._end, self._start + start
            self._block.leave(self._end, stop)

    def __iter__(self):
        return iter([_record(self._block, at) for at in range(self._start, self._end)])

    def __repr__(self):
        return f"<Records {list(self)}>"


cdef inline Records _records(_Block block, Py_ssize_t start, Py_ssize_t end):
    cdef Records made = Records.__new__(Records)
    made._block = block
    made._start = start
    made._end = end
    block.use(start, end)
    return made


cdef class Consumer(_Client):
    """The methods of confluent-kafka's Consumer that the readers use. One thread uses it at a time."""

    cdef _Handle _handle
    cdef rd_kafka_queue_t *_queue
    #: what the last call has read: messages, sizes of payloads as of a block, where runs of a partition begin
    cdef rd_kafka_message_t *_read[_MOST]
    cdef int64_t _sizes[_MOST + 1]
    cdef int32_t _begins[_MOST + 1]
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
        cdef Py_ssize_t runs
        cdef bint headed = self._handle.headed
        self._check_open()
        cdef rd_kafka_message_t **gone
        cdef Py_ssize_t gone_count = self._handle.take_gone(&gone)
        with nogil:
            _free(gone, gone_count)
            count = consume_batch(self._queue, ms, self._read, limit)
            headed = headed or self._have_headers(count)
            runs = self._split(count)
        self._handle.headed = headed
        found = [record for records in self._records(runs) for record in records]
        self._raise()
        return found

    def read(self, most, timeout, list into):
        """Add what is there, at most so many records and events; wait at most `timeout` seconds for one.

        What is added is for `by_partition`. No signal handler runs between the moment records leave the queue
        and the moment they are in the list.
        """
        cdef size_t limit = min(most, _MOST)
        cdef int ms = <int>(timeout * 1000)
        cdef ssize_t count
        cdef ssize_t more
        cdef Py_ssize_t runs
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
            runs = self._split(count)
        self._handle.headed = headed
        into += self._records(runs)
        self._raise()

    cdef bint _have_headers(self, ssize_t count) noexcept nogil:
        """Whether one of the messages that were read last has headers."""
        cdef rd_kafka_headers_t *headers
        cdef ssize_t index
        for index in range(count):
            if self._read[index].err == 0 and message_headers(self._read[index], &headers) == 0:
                return True
        return False

    cdef Py_ssize_t _split(self, ssize_t count) noexcept nogil:
        """Find the runs of messages of one partition among those that were read last; returns how many."""
        cdef Py_ssize_t index
        cdef Py_ssize_t runs = 0
        cdef rd_kafka_message_t *message
        cdef int32_t partition = -2
        self._sizes[0] = 0
        for index in range(count):
            if index + _AHEAD < count:
                prefetch(self._read[index + _AHEAD])
            message = self._read[index]
            if index == 0 or message.partition != partition:
                partition = message.partition
                self._begins[runs] = <int32_t>index
                runs += 1
            self._sizes[index + 1] = self._sizes[index] + (0 if message.err else <int64_t>message.len)
        self._begins[runs] = <int32_t>max(count, 0)
        return runs

    cdef list _records(self, Py_ssize_t runs):
        """Return the messages that were read last: the records of each run."""
        cdef Py_ssize_t run, start
        cdef _Block block
        cdef list found = []
        for run in range(runs):
            start = self._begins[run]
            block = _Block.__new__(_Block)
            block.fill(self._handle, self._read + start, self._sizes + start, self._begins[run + 1] - start)
            found.append(_records(block, 0, block.count))
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


cdef inline void _fetch_ahead(_Block block, Py_ssize_t at) noexcept:
    """Have the memory of the next records brought near: another core wrote it, and waiting for it takes long."""
    cdef rd_kafka_message_t *message
    if at + 2 * _AHEAD < block.count:
        prefetch(block.messages[at + 2 * _AHEAD])
    if at + _AHEAD < block.count:
        message = block.messages[at + _AHEAD]
        if message != NULL:
            prefetch(message.payload)
            prefetch(<const char *>message.payload + 64)


def values(records):
    """Return the payloads of records."""
    cdef Py_ssize_t at
    cdef Py_ssize_t start
    cdef _Block block
    cdef list found
    if type(records) is not Records:
        return [(<Record?>record).value() for record in records]
    block = (<Records>records)._block
    start = (<Records>records)._start
    found = [None] * len(records)
    for at in range(len(found)):
        _fetch_ahead(block, start + at)
        found[at] = block.value(start + at)
    return found


def size_of(records):
    """Return the bytes of the payloads of records."""
    cdef _Block block
    if type(records) is not Records:
        return sum([len(<Record?>record) for record in records])
    block = (<Records>records)._block
    return block.sizes[(<Records>records)._end] - block.sizes[(<Records>records)._start]


def detach(records):
    """Copy the parts of records, and free librdkafka's messages: each keeps the answer of Kafka it came in."""
    if type(records) is Records:
        (<Records>records)._block.detach((<Records>records)._start, (<Records>records)._end)
        return
    for record in records:
        (<Record?>record)._block.detach((<Record>record)._at, (<Record>record)._at + 1)


def by_partition(list read):
    """Return what `Consumer.read` has added: partition, records, and whether there are events among them.

    A partition may come several times; the order within a partition is kept.
    """
    cdef Records records
    return [(records._block.partition, records[:], records._block.eventful) for records in read]


cdef object _last_header(const rd_kafka_headers_t *headers, const char *name):
    cdef const void *value
    cdef size_t size
    if header_get_last(headers, name, &value, &size) or value == NULL:
        return None
    return PyBytes_FromStringAndSize(<const char *>value, <Py_ssize_t>size)


cdef tuple _two_headers(_Block block, Py_ssize_t at, bytes first, bytes second):
    """Return the values of two headers of a record; None: it has neither."""
    cdef rd_kafka_headers_t *headers
    cdef const void *value
    cdef size_t size
    if block.messages[at] == NULL:
        last = dict(block.headers(at) or ())
        values = (last.get(first.decode()), last.get(second.decode()))
        return None if values == (None, None) else values
    if message_headers(block.messages[at], &headers):
        return None
    if header_get_last(headers, first, &value, &size) and header_get_last(headers, second, &value, &size):
        return None
    return (_last_header(headers, first), _last_header(headers, second))


def with_headers(records, bytes first, bytes second):
    """Return the values of two headers of the records that have one of them: index -> (value, value)."""
    cdef Py_ssize_t index
    cdef Py_ssize_t start
    cdef _Block block
    cdef Record record
    cdef dict found = {}
    if type(records) is Records:
        block = (<Records>records)._block
        start = (<Records>records)._start
        if not block.handle.headed:
            return found
        for index in range(len(records)):
            values = _two_headers(block, start + index, first, second)
            if values is not None:
                found[index] = values
        return found
    for index, record in enumerate(records):
        if not record._block.handle.headed:  # all are of one client
            break
        values = _two_headers(record._block, record._at, first, second)
        if values is not None:
            found[index] = values
    return found
