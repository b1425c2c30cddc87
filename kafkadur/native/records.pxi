# Records: places in slabs, which are arrays of librdkafka's messages of one partition.

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
@cython.auto_pickle(False)
cdef class _Handle:
    """One client of librdkafka, and the list of the slabs that keep messages of it."""

    cdef rd_kafka_t *rk
    cdef str topic
    cdef int generation
    #: the last slab of the list; slabs are linked with one another, without counted references
    cdef void *last
    #: whether a record with headers was ever read
    cdef bint headed
    #: messages of records that are gone: the next read frees them, without Python's lock; there is room for so many
    cdef rd_kafka_message_t **_gone
    cdef Py_ssize_t _gone_count
    cdef Py_ssize_t _gone_room
    #: the same, of which a read frees messages
    cdef rd_kafka_message_t **_freed
    cdef Py_ssize_t _freed_room
    #: whether messages are freed at once: no read follows soon
    cdef bint _rests

    cdef inline void drop(self, rd_kafka_message_t *message) noexcept:
        """Free a message, now or with the next read."""
        global _kept
        if self._rests or not (self._gone_count < self._gone_room or self._make_room()):
            _kept -= 1
            message_destroy(message)
        else:
            self._gone[self._gone_count] = message
            self._gone_count += 1

    cdef bint _make_room(self) noexcept:
        """Have room for more messages that are gone; returns whether there is."""
        cdef Py_ssize_t room = min(2 * self._gone_room + _FEW, _GONE)
        cdef void *made
        if room == self._gone_room:
            return False
        made = realloc(self._gone, room * sizeof(rd_kafka_message_t *))
        if made == NULL:
            return False
        self._gone, self._gone_room = <rd_kafka_message_t **>made, room
        return True

    cdef Py_ssize_t take_gone(self, rd_kafka_message_t ***into) noexcept:
        """Hand out the messages to be freed before the next call; returns how many."""
        global _kept
        cdef Py_ssize_t count = self._gone_count
        into[0] = self._gone
        self._gone, self._freed = self._freed, self._gone
        self._gone_room, self._freed_room = self._freed_room, self._gone_room
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
        cdef _Slab slab
        if rk == NULL or self.generation != _generation:  # a forked child has none of the client's threads
            return
        while self.last != NULL:
            slab = <_Slab>self.last
            slab.detach(0, slab.count)
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
@cython.auto_pickle(False)
cdef class _Slab:
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

    def __dealloc__(self):
        cdef Py_ssize_t at
        if self.kept and self.handle.generation == _generation:  # memory was short: nothing came to use them
            for at in range(self.count):
                if self.messages[at] != NULL:
                    self.handle.drop(self.messages[at])
            self._unlink()
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
            (<_Slab>self.before).after = <void *>self
        handle.last = <void *>self
        _kept += count
        return 0

    cdef inline void use(self, Py_ssize_t start, Py_ssize_t end) noexcept:
        """Keep messages [start, end) until `leave`."""
        cdef Py_ssize_t at
        for at in range(start, end):
            self.uses[at] += 1

    cdef inline void leave(self, Py_ssize_t start, Py_ssize_t end) noexcept:
        """Messages [start, end) are not used any more here: free those, and their parts, that nothing else uses."""
        cdef Py_ssize_t at
        cdef rd_kafka_message_t *message
        for at in range(start, end):
            self.uses[at] -= 1
            if self.uses[at] == 0:
                message = self.messages[at]
                if message == NULL:
                    self._forget_parts(at)
                elif self.handle.generation == _generation:
                    self._forget(at)
                    self.handle.drop(message)

    cdef inline void _forget(self, Py_ssize_t at) noexcept:
        self.messages[at] = NULL
        self.kept -= 1
        if self.kept == 0:
            self._unlink()

    cdef void _forget_parts(self, Py_ssize_t at):
        if self.parts is not None:
            self.parts.pop(at, None)

    cdef void _unlink(self) noexcept:
        if self.before != NULL:
            (<_Slab>self.before).after = self.after
        if self.after != NULL:
            (<_Slab>self.after).before = self.before
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
        # Making a tuple may let another thread run, which may detach the message. The caller uses it, so it is
        # not freed otherwise.
        while self.messages[at] != NULL and header_get_all(headers, index, &name, &value, &size) == 0:
            content = None
            if value != NULL:
                content = PyBytes_FromStringAndSize(<const char *>value, <Py_ssize_t>size)
            raw = <bytes>name
            found.append((raw.decode(errors="replace"), content))  # Kafka takes any bytes as a name
            index += 1
        if self.messages[at] == NULL:
            return self.parts[at][2]
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

    cdef int detach(self, Py_ssize_t start, Py_ssize_t end) except -1:
        """Copy the parts of messages [start, end), and free them: each keeps the answer of Kafka it came in."""
        cdef Py_ssize_t at
        for at in range(start, end):
            if self.messages[at] != NULL and self.handle.generation == _generation:
                self.use(at, at + 1)  # collecting garbage may end all other uses
                try:
                    self._detach(at)
                finally:
                    self.leave(at, at + 1)
        return 0

    cdef int _detach(self, Py_ssize_t at) except -1:
        global _kept
        cdef rd_kafka_message_t *message
        parts = (
            self.value(at), self.key(at), self.headers(at), self.timestamp(at), self.leader_epoch(at),
            self.error(at), self.offset(at),
        )
        if self.parts is None:
            self.parts = {}
        message = self.messages[at]
        if message != NULL:  # else another thread was faster
            self.parts[at] = parts
            self._forget(at)
            _kept -= 1
            message_destroy(message)
        return 0


@cython.final
@cython.no_gc
@cython.auto_pickle(False)  # a copy would not be counted
@cython.nonecheck(True)
@cython.freelist(1000)
cdef class Record:
    """A record, or an event such as the end of a partition, with the methods of confluent-kafka's Message."""

    #: None only of an object that Python code has made
    cdef _Slab _slab
    cdef Py_ssize_t _at

    def __init__(self):
        raise TypeError("records are read")

    def __dealloc__(self):
        if self._slab is not None:
            self._slab.leave(self._at, self._at + 1)

    def __len__(self):
        return self._slab.sizes[self._at + 1] - self._slab.sizes[self._at]

    def topic(self):
        """Name of the topic."""
        return self._slab.handle.topic

    def partition(self):
        """Number of the partition."""
        return self._slab.partition

    def offset(self):
        """The offset; None: of an event that has none."""
        cdef int64_t offset = self._slab.offset(self._at)
        return None if offset < 0 else offset

    def value(self):
        """The payload; None: there is none."""
        return self._slab.value(self._at)

    def key(self):
        """The key; None: there is none."""
        return self._slab.key(self._at)

    def error(self):
        """The error or event; None: this is a record."""
        return self._slab.error(self._at)

    def timestamp(self):
        """Type of the time, and ms since 1970."""
        return self._slab.timestamp(self._at)

    def leader_epoch(self):
        """Leader epoch; None: it is not known."""
        return self._slab.leader_epoch(self._at)

    def headers(self):
        """Names and values of the headers; None: there are none."""
        return self._slab.headers(self._at)

    def latency(self):
        """None, as of every consumed message."""
        return None

    def as_message(self):
        """Return a confluent-kafka Message of the same content."""
        return Message(
            topic=self.topic(),
            partition=self.partition(),
            offset=self._slab.offset(self._at),
            key=self.key(),
            value=self.value(),
            headers=self.headers(),
            error=self.error(),
            timestamp=self.timestamp(),
            leader_epoch=self.leader_epoch(),
        )

    def __repr__(self):
        return f"<Record {self.topic()}[{self.partition()}]@{self.offset()}>"


cdef inline Record _record(_Slab slab, Py_ssize_t at):
    cdef Record made = Record.__new__(Record)
    made._slab = slab
    made._at = at
    slab.use(at, at + 1)
    return made


@cython.final
@cython.no_gc
@cython.auto_pickle(False)  # as of a record
@cython.nonecheck(True)
cdef class Records:
    """Records and events of one partition, in order: as a list of `Record`, which are made when they are used.

    A slice is one as well. Only the first or the last ones can be deleted.
    """

    cdef _Slab _slab
    cdef Py_ssize_t _start
    cdef Py_ssize_t _end

    def __init__(self):
        raise TypeError("records are read")

    def __dealloc__(self):
        if self._slab is not None:
            self._slab.leave(self._start, self._end)

    cdef inline void place(self, _Slab slab, Py_ssize_t start, Py_ssize_t end) noexcept:
        """Refer to the records [start, end) of a slab."""
        slab.use(start, end)
        self._slab = slab
        self._start = start
        self._end = end

    def __len__(self):
        return self._end - self._start

    def __getitem__(self, index):
        cdef Py_ssize_t at
        if isinstance(index, slice):
            start, stop, step = index.indices(self._end - self._start)
            if step != 1:
                raise ValueError("a slice of records has no step")
            return _records(self._slab, self._start + start, self._start + max(start, stop))
        at = index
        if at < 0:
            at += self._end - self._start
        if at < 0 or at >= self._end - self._start:
            raise IndexError(index)
        return _record(self._slab, self._start + at)

    def __delitem__(self, index):
        start, stop, step = index.indices(self._end - self._start)
        if step != 1 or (start > 0 and stop < self._end - self._start):
            raise ValueError("only the first or the last records can be deleted")
        if start == 0:
            start, self._start = self._start, self._start + stop
            self._slab.leave(start, self._start)
        else:
            stop, self._end = self._end, self._start + start
            self._slab.leave(self._end, stop)

    def __iter__(self):
        return iter([_record(self._slab, at) for at in range(self._start, self._end)])

    def __repr__(self):
        return f"<Records {list(self)}>"


cdef inline Records _records(_Slab slab, Py_ssize_t start, Py_ssize_t end):
    cdef Records made = Records.__new__(Records)
    made.place(slab, start, end)
    return made


cdef inline void _fetch_ahead(_Slab slab, Py_ssize_t at) noexcept:
    """Have the memory of the next records brought near: another core wrote it, and waiting for it takes long."""
    cdef rd_kafka_message_t *message
    if at + 2 * _AHEAD < slab.count:
        prefetch(slab.messages[at + 2 * _AHEAD])
    if at + _AHEAD < slab.count:
        message = slab.messages[at + _AHEAD]
        if message != NULL:
            prefetch(message.payload)
            prefetch(<const char *>message.payload + 64)


@cython.nonecheck(True)
def values(records):
    """Return the payloads of records."""
    cdef Py_ssize_t at
    cdef Py_ssize_t start
    cdef _Slab slab
    cdef list found
    if type(records) is not Records:
        return [(<Record?>record).value() for record in records]
    slab = (<Records>records)._slab
    start = (<Records>records)._start
    found = [None] * len(records)
    for at in range(len(found)):
        _fetch_ahead(slab, start + at)
        found[at] = slab.value(start + at)
    return found


@cython.nonecheck(True)
def size_of(records):
    """Return the bytes of the payloads of records."""
    cdef _Slab slab
    if type(records) is not Records:
        return sum([len(<Record?>record) for record in records])
    slab = (<Records>records)._slab
    return slab.sizes[(<Records>records)._end] - slab.sizes[(<Records>records)._start]


@cython.nonecheck(True)
def detach(records):
    """Copy the parts of records, and free librdkafka's messages: each keeps the answer of Kafka it came in."""
    if type(records) is Records:
        (<Records>records)._slab.detach((<Records>records)._start, (<Records>records)._end)
        return
    for record in records:
        (<Record?>record)._slab.detach((<Record>record)._at, (<Record>record)._at + 1)


@cython.nonecheck(True)
def by_partition(list read):
    """Return what `Consumer.read` has added: partition, records, and whether there are events among them.

    A partition may come several times; the order within a partition is kept.
    """
    cdef Records records
    return [(records._slab.partition, records[:], records._slab.eventful) for records in read]


cdef object _last_header(const rd_kafka_headers_t *headers, const char *name):
    cdef const void *value
    cdef size_t size
    if header_get_last(headers, name, &value, &size) or value == NULL:
        return None
    return PyBytes_FromStringAndSize(<const char *>value, <Py_ssize_t>size)


cdef tuple _two_headers(_Slab slab, Py_ssize_t at, bytes first, bytes second):
    """Return the values of two headers of a record; None: it has neither."""
    cdef rd_kafka_headers_t *headers
    cdef const void *value
    cdef size_t size
    if slab.messages[at] == NULL:
        last = dict(slab.headers(at) or ())
        values = (last.get(first.decode()), last.get(second.decode()))
        return None if values == (None, None) else values
    if message_headers(slab.messages[at], &headers):
        return None
    if header_get_last(headers, first, &value, &size) and header_get_last(headers, second, &value, &size):
        return None
    return (_last_header(headers, first), _last_header(headers, second))


@cython.nonecheck(True)
def with_headers(records, bytes first, bytes second):
    """Return the values of two headers of the records that have one of them: index -> (value, value)."""
    cdef Py_ssize_t index
    cdef Py_ssize_t start
    cdef _Slab slab
    cdef Record record
    cdef dict found = {}
    if type(records) is Records:
        slab = (<Records>records)._slab
        start = (<Records>records)._start
        if not slab.handle.headed:
            return found
        for index in range(len(records)):
            values = _two_headers(slab, start + index, first, second)
            if values is not None:
                found[index] = values
        return found
    for index, record in enumerate(records):
        if not record._slab.handle.headed:  # all are of one client
            break
        values = _two_headers(record._slab, record._at, first, second)
        if values is not None:
            found[index] = values
    return found
