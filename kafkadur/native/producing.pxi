# The client that writes.

cdef enum:
    #: headers of a message for which there is room without an allocation
    _USUAL = 24
    #: arguments of a message besides its headers
    _OTHERS = 7
    #: topics that are kept open, and names of properties that are known to be allowed
    _MOST_TOPICS = 1000
    _MOST_NAMES = 1000
    #: properties of a message that `publish` takes
    _MOST_PROPERTIES = 12
    #: headers of a message that `publish` writes, besides properties
    _OWN = 4
    #: bytes of the longest message id, and of the longest companion header, that `publish` writes
    _ID = 256
    _COMPANION = 512
    #: messages of `publish` after which it serves reports
    _SERVED_EVERY = 256
    #: digits of a 64-bit number, with its sign
    _DIGITS = 20


@cython.final
cdef class Sent:
    """What the delivery report of a message says, with methods of confluent-kafka's Message."""

    cdef str _topic
    cdef int32_t _partition
    cdef int64_t _offset
    cdef tuple _timestamp

    def topic(self):
        """Name of the topic."""
        return self._topic

    def partition(self):
        """Number of the partition."""
        return self._partition

    def offset(self):
        """The offset; None: it has none, because it was not written."""
        return None if self._offset < 0 else self._offset

    def timestamp(self):
        """Type of the time, and ms since 1970."""
        return self._timestamp


cdef void _report(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) noexcept nogil:
    """Serve a delivery report. Most are of messages that were written, whose sender wants no report."""
    if message._private != NULL or message.err:
        _tell_report(message, opaque)


cdef void _tell_report(const rd_kafka_message_t *message, void *opaque) noexcept with gil:
    cdef Producer producer = <Producer>opaque
    cdef Sent sent = Sent.__new__(Sent)
    cdef int kind
    cdef int64_t at
    try:
        if message._private == NULL:
            report = producer._on_failure
        else:
            report = <object>message._private
            Py_DECREF(report)  # the reference of `produce`
            producer.reports -= 1
        at = message_timestamp(message, &kind)
        sent._topic = rd_topic_name(message.rkt).decode()
        sent._partition = message.partition
        sent._offset = message.offset
        sent._timestamp = (kind, 0 if kind == _NO_TIMESTAMP else at)
        report(KafkaError(message.err) if message.err else None, sent)
    except BaseException as error:
        producer._raised = error


cdef const char *_TRUE = "true"
cdef const char *_FALSE = "false"


cdef int _content(object given, void **place, size_t *size) except -1:
    """Find the bytes of a text, of bytes, or of None."""
    cdef Py_ssize_t length
    if given is None:
        place[0] = NULL
        size[0] = 0
    elif isinstance(given, bytes):
        place[0] = PyBytes_AS_STRING(given)
        size[0] = PyBytes_GET_SIZE(given)
    elif isinstance(given, str):
        place[0] = <void *>PyUnicode_AsUTF8AndSize(given, &length)
        size[0] = length
    else:
        raise TypeError(f"expected str, bytes or None, not {type(given).__name__}")
    return 0


cdef inline bint _is_content(object given):
    """Say whether `_content` takes this."""
    return given is None or isinstance(given, (bytes, str))


@cython.cdivision(True)  # a negative number has negative remainders
cdef int _digits(int64_t number, char *place) noexcept nogil:
    """Write a number in decimal digits; returns how many bytes."""
    cdef char backwards[_DIGITS]
    cdef int count = 0
    cdef int length = 0
    cdef int64_t left = number
    if number < 0:
        place[0] = b"-"
        length = 1
    while True:
        backwards[count] = <char>(48 + (left % 10 if left >= 0 else -(left % 10)))
        left = left // 10
        count += 1
        if left == 0:
            break
    while count:
        count -= 1
        place[length] = backwards[count]
        length += 1
    return length


cdef inline void _header(rd_kafka_vu_t *into, const char *name, const char *content, ssize_t size) noexcept:
    into.vtype = _V_HEADER
    into.u.header.name = name
    into.u.header.val = content
    into.u.header.size = size


cdef int _property(rd_kafka_vu_t *into, name, item, char *digits, char **text) except -1:
    """Write a property as a header; returns 1 if `text` is to be freed after use, else 0.

    Raises an error for a value that takes the longer way.
    """
    cdef Py_ssize_t size
    cdef const char *content = NULL
    cdef int floats = 0
    kind = type(item)
    if kind is str:
        content = PyUnicode_AsUTF8AndSize(item, &size)
    elif kind is int:
        size = _digits(<int64_t>item, digits)  # OverflowError: beyond 64 bits
        content = digits
    elif kind is float:
        text[0] = PyOS_double_to_string(item, c"r", 0, Py_DTSF_ADD_DOT_0, NULL)
        size = strlen(text[0])
        content = text[0]
        floats = 1
    elif kind is bool:
        content = _TRUE if item else _FALSE
        size = 4 if item else 5
    elif kind is bytes:
        content = PyBytes_AS_STRING(item)
        size = PyBytes_GET_SIZE(item)
    elif item is None:
        size = 0
    else:
        raise TypeError
    _header(into, PyUnicode_AsUTF8AndSize(name, NULL), content, size)
    return floats


cdef int _type_of(name, item, char *into, Py_ssize_t room, bint further) except -1:
    """Write the entry of a property in the companion header; returns how many bytes.

    Raises an error if there is no room.
    """
    cdef Py_ssize_t size
    cdef const char *text
    cdef char letter
    kind = type(item)
    if kind is str or item is None:
        return 0
    letter = c"i" if kind is int else c"f" if kind is float else c"b" if kind is bool else c"x"
    text = PyUnicode_AsUTF8AndSize(name, &size)
    if size + 3 > room:
        raise OverflowError
    if further:
        into[0] = c";"
        into += 1
    memcpy(into, text, size)
    into[size] = c"="
    into[size + 1] = letter
    return <int>size + 2 + further


@cython.final
@cython.no_gc_clear  # its end needs its topics
cdef class Producer(_Client):
    """The methods of confluent-kafka's Producer that the producer uses. Any thread uses it."""

    cdef rd_kafka_t *_rk
    cdef int _made_in
    #: calls that are under way without the lock of the interpreter
    cdef int _inside
    cdef bint _closed
    #: messages under way that have a report of their own
    cdef readonly Py_ssize_t reports
    #: called with the report of a message that was not written, if the message has none of its own
    cdef object _on_failure
    #: addresses of open topics by name, and the topic of the last message
    cdef dict _topics
    cdef object _name
    cdef rd_kafka_topic_t *_topic
    #: of `publish`: the beginning of message ids, the last id's number, headers of the sender of
    #: messages with properties, and of those without
    cdef bytes _prefix
    cdef int64_t _number
    cdef list _full
    cdef list _brief
    cdef object _check_name
    cdef object _otherwise
    cdef set _names

    def __init__(self, config, *, logger):
        """`config` has texts, numbers and bools, and perhaps `error_cb` and `stats_cb`.

        Raises KafkaException for a setting that librdkafka refuses, ValueError for one that only
        confluent-kafka takes: another callable.
        """
        cdef rd_kafka_conf_t *conf
        config = self._without_functions(config)
        self._logger = logger
        self._topics = {}
        self._made_in = _generation
        conf = conf_new()
        rd_set_dr_msg_cb(conf, _report)
        self._rk = self._made(_PRODUCER, config, conf)

    def __dealloc__(self):
        self._end()

    cdef void _end(self):
        cdef rd_kafka_t *rk = self._rk
        if rk == NULL or self._made_in != _generation:  # a forked child has none of the client's threads
            return
        self._rk = NULL
        self._close_topics()
        with nogil:
            rd_destroy(rk, 0)

    cdef void _close_topics(self):
        for address in self._topics.values():
            topic_destroy(<rd_kafka_topic_t *><size_t>address)
        self._topics = {}
        self._name = None

    cdef int _enter(self) except -1:
        """Begin a call without the lock of the interpreter."""
        if self._closed or self._made_in != _generation:
            raise RuntimeError("Producer closed")
        self._inside += 1
        return 0

    cdef int _leave(self) except -1:
        """End a call; the last one ends the client if it was closed meanwhile."""
        self._inside -= 1
        if self._closed and self._inside == 0:
            self._end()
        return self._raise()

    cdef rd_kafka_topic_t *_open(self, topic) except NULL:
        """Return the topic of this name."""
        cdef bytes raw
        cdef rd_kafka_topic_t *found
        if topic is self._name:
            return self._topic
        known = self._topics.get(topic)
        if known is None:
            raw = topic.encode()
            if strlen(raw) != <size_t>len(raw):
                raise ValueError("embedded null character")
            if len(self._topics) >= _MOST_TOPICS:
                self._close_topics()
            found = topic_new(self._rk, raw, NULL)
            if found == NULL:
                raise _failed(rd_last_error())
            self._topics[topic] = <size_t>found
        else:
            found = <rd_kafka_topic_t *><size_t>known
        self._name = topic
        self._topic = found
        return found

    def produce(self, str topic not None, value, key, int32_t partition, report, on_failure, int64_t timestamp,
                list headers):
        """Put a message into the buffer.

        `partition` -1: the partitioner chooses. `report` is called with error and `Sent` when the message is
        written or given up; if it is None, `on_failure` is, and only then: the same one in every call.
        `timestamp`: ms since 1970, 0: now. `headers`: a list of names and values, or None. Raises BufferError
        while the buffer is full, KafkaException for a message that librdkafka refuses, RuntimeError after
        `close`.
        """
        cdef rd_kafka_vu_t usual[_USUAL + _OTHERS]
        cdef rd_kafka_vu_t *given = usual
        cdef rd_kafka_error_t *error
        cdef size_t count = len(headers) if headers is not None else 0
        cdef size_t size
        cdef void *place
        if self._closed or self._made_in != _generation:
            raise RuntimeError("Producer closed")
        if count > _USUAL:
            given = <rd_kafka_vu_t *>malloc((count + _OTHERS) * sizeof(rd_kafka_vu_t))
            if given == NULL:
                raise MemoryError
        try:
            given[1].vtype, given[1].u.i = _V_FLAGS, _COPY
            given[2].vtype, given[2].u.i32 = _V_PARTITION, partition
            given[3].vtype, given[3].u.i64 = _V_TIMESTAMP, timestamp
            given[4].vtype = _V_VALUE
            _content(value, &given[4].u.mem.ptr, &given[4].u.mem.size)
            given[5].vtype = _V_KEY
            _content(key, &given[5].u.mem.ptr, &given[5].u.mem.size)
            given[6].vtype, given[6].u.ptr = _V_OPAQUE, NULL if report is None else <void *>report
            count = _OTHERS
            for pair in headers or ():
                if type(pair) is not tuple or len(<tuple>pair) != 2:  # it keeps what the addresses point to
                    raise TypeError("headers are tuples of a name and a value")
                name, content = <tuple>pair
                _content(name, &place, &size)
                given[count].vtype = _V_HEADER
                given[count].u.header.name = <const char *>place
                _content(content, &place, &size)
                given[count].u.header.val = place
                given[count].u.header.size = <ssize_t>size
                count += 1
            # last, because no other thread may close topics until the message is in the buffer
            given[0].vtype, given[0].u.rkt = _V_TOPIC, self._open(topic)
            if report is None:
                self._on_failure = on_failure
            else:
                Py_INCREF(report)  # until `_tell_report`
                self.reports += 1
            error = rd_produceva(self._rk, given, count)
            if error != NULL:
                if report is not None:
                    Py_DECREF(report)
                    self.reports -= 1
                if error_code(error) == _QUEUE_FULL:
                    error_destroy(error)
                    raise BufferError("Local: Queue full")
                _check(error)
        finally:
            if given != usual:
                free(given)

    def identify(self, prefix, full, brief, check_name, on_failure, otherwise):
        """Say what messages of `publish` have.

        `prefix`: the beginning of message ids; `full`: headers of every message with properties; `brief`:
        of one without; `check_name` raises an error for a name that no property can have; `on_failure` is
        called as that of `produce`; `otherwise` publishes what is unusual.
        """
        self._otherwise = otherwise
        self._prefix = prefix
        self._check_name = check_name
        self._on_failure = on_failure
        self._names = set()
        if len(prefix) + _DIGITS <= _ID and max(len(full), len(brief)) <= _OWN - 2:
            self._full = [(name.encode(), bytes(value)) for name, value in full]
            self._brief = [(name.encode(), bytes(value)) for name, value in brief]

    def retire(self):
        """Leave all further messages of `publish` to the `otherwise` of `identify`."""
        self._full = None

    def publish(self, topic, value, *, key=None, properties=None, **others):
        """As `kafkadur.Producer.publish`, which does it if anything is unusual or wrong, or the buffer full."""
        if others or not self._publish(topic, value, key, properties):
            self._otherwise(topic, value, key=key, properties=properties, **others)
        elif self.reports == 0 and self._number % _SERVED_EVERY == 0:
            # This thread has allocated the messages, so it frees them fastest. No function of the caller but
            # `error_cb` and `stats_cb` is called, because no message has a report of its own.
            self._inside += 1
            rd_poll(self._rk, 0)
            self._inside -= 1
            if self._closed and self._inside == 0:
                self._end()

    cdef bint _publish(self, topic, value, key, properties):
        """Put a message with a message id, the sender and properties into the buffer, as headers.py has it.

        Returns False, and has done nothing, if it cannot. No code in Python is run while there are addresses
        of what others may change.
        """
        cdef rd_kafka_vu_t given[_OTHERS + _OWN + _MOST_PROPERTIES]
        cdef char identity[_ID]
        cdef char companion[_COMPANION]
        cdef char numbers[_MOST_PROPERTIES][_DIGITS]
        cdef char *texts[_MOST_PROPERTIES]  # of floats, to be freed
        cdef int floats = 0
        cdef int index = 0
        cdef int length = 0
        cdef Py_ssize_t size
        cdef size_t count = _OTHERS
        cdef rd_kafka_error_t *error
        if self._closed or self._made_in != _generation or self._full is None or type(topic) is not str:
            return False
        if not (_is_content(value) and _is_content(key)):
            return False
        if properties is not None and not self._allowed(properties):
            return False
        try:
            given[1].vtype, given[1].u.i = _V_FLAGS, _COPY
            given[2].vtype, given[2].u.i32 = _V_PARTITION, -1
            given[3].vtype, given[3].u.i64 = _V_TIMESTAMP, 0
            given[4].vtype = _V_VALUE
            _content(value, &given[4].u.mem.ptr, &given[4].u.mem.size)
            given[5].vtype = _V_KEY
            _content(key, &given[5].u.mem.ptr, &given[5].u.mem.size)
            given[6].vtype, given[6].u.ptr = _V_OPAQUE, NULL
            memcpy(identity, PyBytes_AS_STRING(self._prefix), PyBytes_GET_SIZE(self._prefix))
            size = PyBytes_GET_SIZE(self._prefix)
            self._number += 1
            size += _digits(self._number, identity + size)
            _header(&given[count], "JMSMessageID", identity, size)
            count += 1
            for name, content in self._full if properties else self._brief:
                _header(
                    &given[count], PyBytes_AS_STRING(name), PyBytes_AS_STRING(content), PyBytes_GET_SIZE(content)
                )
                count += 1
            if properties is not None:
                for name, item in (<dict>properties).items():
                    floats += _property(&given[count], name, item, numbers[index], &texts[floats])
                    length += _type_of(name, item, companion + length, _COMPANION - length, length > 0)
                    count += 1
                    index += 1
            if length:
                _header(&given[count], "kafkadur-types", companion, length)
                count += 1
            given[0].vtype, given[0].u.rkt = _V_TOPIC, self._open(topic)
            error = rd_produceva(self._rk, given, count)
            if error != NULL:
                error_destroy(error)
                return False
            return True
        except Exception:
            return False
        finally:
            while floats:
                floats -= 1
                PyMem_Free(texts[floats])

    cdef bint _allowed(self, properties) except -1:
        """Return whether all names are known to be allowed; others are looked at, for the next time."""
        if type(properties) is not dict or len(<dict>properties) > _MOST_PROPERTIES:
            return False
        for name in <dict>properties:
            if type(name) is not str:
                return False
            if name not in self._names:
                return self._learn(list(properties))
        return True

    cdef bint _learn(self, list names) except -1:
        """Remember the names that properties can have; returns False."""
        if len(self._names) >= _MOST_NAMES:
            self._names.clear()
        for name in names:
            try:
                self._check_name(name)
            except Exception:
                return False  # the longer way says what is wrong
            self._names.add(name)
        return False

    def poll(self, timeout):
        """Serve reports, for at most `timeout` seconds; returns how many events were served."""
        cdef int ms = <int>(timeout * 1000)
        cdef int served
        self._enter()
        with nogil:
            served = rd_poll(self._rk, ms)
        self._leave()
        return served

    def flush(self, timeout):
        """Serve reports until no message is left, for at most `timeout` seconds; returns how many are."""
        cdef int ms = <int>(timeout * 1000)
        cdef int left
        self._enter()
        with nogil:
            rd_flush(self._rk, ms)
            left = rd_outq_len(self._rk)
        self._leave()
        return left

    def purge(self):
        """Give all messages up; their reports say so."""
        self._enter()
        with nogil:
            rd_purge(self._rk, _PURGE_ALL)
        self._leave()

    def list_topics(self, topic=None, timeout=-1):
        """Ask for metadata; raises KafkaException if no broker answers in time."""
        self._enter()
        try:
            _ask(self._rk, topic, timeout)
        finally:
            self._leave()

    def __len__(self):
        """How many messages have no report yet."""
        return 0 if self._closed or self._made_in != _generation else rd_outq_len(self._rk)

    def close(self):
        """End the client, when the calls under way have ended. Messages without a report are given up."""
        if self._closed:
            return
        self._closed = True
        if self._inside == 0:
            self._end()
        self._on_error = self._logger = self._on_failure = None  # they may lead back here
