# The client that reads.


cdef inline bint _lacks_headers(const rd_kafka_message_t *message) noexcept nogil:
    """Whether a message certainly has no headers; asking librdkafka takes 40 % of the time of reading a message.

    In format 2 of Kafka's records the number of headers follows the value, and librdkafka's messages point into
    Kafka's answer. Records of earlier formats have no leader epoch, and an empty value lies elsewhere.
    """
    return (
        message.len > 0
        and message_leader_epoch(message) >= 0
        and (<const char *>message.payload)[message.len] == 0
    )


def known():
    """Return whether `_lacks_headers` is used with this librdkafka: for tests."""
    return rd_version() <= _KNOWN


cdef class Consumer(_Client):
    """The methods of confluent-kafka's Consumer that the readers use. One thread uses it at a time."""

    cdef _Handle _handle
    cdef rd_kafka_queue_t *_queue
    #: what the last call has read: messages, sizes of payloads as of a slab, where runs of a partition begin
    cdef rd_kafka_message_t **_read
    cdef int64_t *_sizes
    cdef int32_t *_begins
    #: for how many messages there is room; whether the last call used all of it
    cdef size_t _room
    cdef bint _filled
    #: whether `_lacks_headers` holds for its messages
    cdef bint _known
    cdef bint _closed

    def __init__(self, config, *, logger, topic):
        """`config` has texts, numbers and bools, and perhaps `error_cb` and `stats_cb`; `topic` is the one that is read.

        Raises KafkaException for a setting that librdkafka refuses, ValueError for one that only
        confluent-kafka takes: another callable.
        """
        if not self._make_room(_FEW):
            raise MemoryError
        config = self._without_functions(config)
        self._logger = logger
        self._handle = _Handle()
        self._handle.generation = _generation
        self._handle.topic = topic
        # a plug-in may put other values into messages
        self._known = rd_version() <= _KNOWN and not config.get("plugin.library.paths")
        self._handle.rk = self._made(_CONSUMER, config, conf_new())
        poll_set_consumer(self._handle.rk)
        self._queue = queue_get_consumer(self._handle.rk)

    def __dealloc__(self):
        if self._queue != NULL and self._handle.generation == _generation:
            queue_destroy(self._queue)
        free(self._read)
        free(self._sizes)
        free(self._begins)

    # -- reading

    cdef bint _make_room(self, size_t room) noexcept:
        """Have room for so many messages in one call; returns whether there is."""
        cdef void *read
        cdef void *sizes
        cdef void *begins
        if room <= self._room:
            return True
        read = realloc(self._read, room * sizeof(rd_kafka_message_t *))
        if read != NULL:
            self._read = <rd_kafka_message_t **>read
        sizes = realloc(self._sizes, (room + 1) * sizeof(int64_t))
        if sizes != NULL:
            self._sizes = <int64_t *>sizes
        begins = realloc(self._begins, (room + 1) * sizeof(int32_t))
        if begins != NULL:
            self._begins = <int32_t *>begins
        if read == NULL or sizes == NULL or begins == NULL:
            return False
        self._room = room
        return True

    def consume(self, most, timeout):
        """Return at most so many records and events; wait at most `timeout` seconds for the last of them."""
        cdef size_t limit = min(most, _MOST)
        self._make_room(limit)
        limit = min(limit, self._room)
        found = [record for records in self._fetch(limit, limit, timeout) for record in records]
        self._raise()
        return found

    def read(self, most, timeout, list into):
        """Add what is there, at most so many records and events; wait at most `timeout` seconds for one.

        There is room for few at first; a call that fills the room doubles it for the next one.

        What is added is for `by_partition`. No signal handler runs between the moment records leave the queue
        and the moment they are in the list.
        """
        cdef size_t limit = min(most, _MOST)
        if self._filled:
            self._make_room(min(2 * self._room, limit))
        limit = min(limit, self._room)
        into += self._fetch(1, limit, timeout)
        self._raise()

    cdef list _fetch(self, size_t awaited, size_t limit, timeout):
        """Wait for so many records and events, and return them with those that are there, `limit` at most."""
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
            count = consume_batch(self._queue, ms, self._read, awaited)
            if count == <ssize_t>awaited and awaited < limit:
                more = consume_batch(self._queue, 0, self._read + count, limit - awaited)
                if more > 0:
                    count += more
            self._filled = count == <ssize_t>self._room
            headed = headed or self._have_headers(count)
            runs = self._split(count)
        self._handle.headed = headed
        return self._records(runs)

    cdef bint _have_headers(self, ssize_t count) noexcept nogil:
        """Whether one of the messages that were read last has headers."""
        cdef rd_kafka_headers_t *headers
        cdef ssize_t index
        cdef rd_kafka_message_t *message
        for index in range(count):
            if index + 2 * _AHEAD < count:
                prefetch(self._read[index + 2 * _AHEAD])
            if index + _AHEAD < count:
                message = self._read[index + _AHEAD]
                prefetch(<const char *>message.payload + message.len)
            message = self._read[index]
            if message.err or (self._known and _lacks_headers(message)):
                continue
            if message_headers(message, &headers) == 0:
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
        cdef Py_ssize_t run
        cdef Py_ssize_t at = 0  # before this index slabs have the messages
        cdef Records records
        cdef _Slab slab
        cdef list found = []
        try:
            for run in range(runs):
                records, slab = Records.__new__(Records), _Slab.__new__(_Slab)
                found.append(records)
                slab.fill(self._handle, self._read + at, self._sizes + at, self._begins[run + 1] - at)
                records.place(slab, 0, slab.count)
                at = self._begins[run + 1]
        finally:
            while at < self._begins[runs]:  # memory is short
                message_destroy(self._read[at])
                at += 1
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
