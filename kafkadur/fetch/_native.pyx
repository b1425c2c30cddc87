# cython: language_level=3
"""Reads Kafka with librdkafka's own functions: records without confluent-kafka's Message objects.

A `Message` of confluent-kafka takes half a microsecond to make, which is most of the time of reading. A `Record`
keeps librdkafka's message, and makes Python objects of its parts when they are asked for. `Consumer` has the
methods of confluent-kafka's Consumer that the readers use, `Record` those of its Message, so the readers take
either (`native.py` chooses).

The functions are those of the library that confluent-kafka has loaded: there is no second librdkafka. Layouts and
signatures below are the public ones of rdkafka.h.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy

import os

cimport cython

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka import cimpl

cdef extern from "dlfcn.h" nogil:
    void *dlopen(const char *, int)
    void *dlsym(void *, const char *)
    char *dlerror()
    int RTLD_NOW
    int RTLD_LOCAL

# The parts of rdkafka.h that are used here. Layouts and signatures are the library's public, stable ones.
cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <sys/types.h>
    typedef struct rd_kafka_s rd_kafka_t;
    typedef struct rd_kafka_conf_s rd_kafka_conf_t;
    typedef struct rd_kafka_queue_s rd_kafka_queue_t;
    typedef struct rd_kafka_topic_s rd_kafka_topic_t;
    typedef struct rd_kafka_headers_s rd_kafka_headers_t;
    typedef struct rd_kafka_error_s rd_kafka_error_t;
    typedef struct rd_kafka_metadata rd_kafka_metadata_t;
    typedef struct {
        int err;
        rd_kafka_topic_t *rkt;
        int32_t partition;
        void *payload;
        size_t len;
        void *key;
        size_t key_len;
        int64_t offset;
        void *_private;
    } rd_kafka_message_t;
    typedef struct {
        char *topic;
        int32_t partition;
        int64_t offset;
        void *metadata;
        size_t metadata_size;
        void *opaque;
        int err;
        void *_private;
    } rd_kafka_topic_partition_t;
    typedef struct {
        int cnt;
        int size;
        rd_kafka_topic_partition_t *elems;
    } rd_kafka_topic_partition_list_t;
    typedef void (*kd_log_cb)(const rd_kafka_t *, int, const char *, const char *);
    typedef void (*kd_error_cb)(rd_kafka_t *, int, const char *, void *);

    static struct {
        rd_kafka_conf_t *(*conf_new)(void);
        void (*conf_destroy)(rd_kafka_conf_t *);
        int (*conf_set)(rd_kafka_conf_t *, const char *, const char *, char *, size_t);
        void (*conf_set_log_cb)(rd_kafka_conf_t *, kd_log_cb);
        void (*conf_set_error_cb)(rd_kafka_conf_t *, kd_error_cb);
        void (*conf_set_opaque)(rd_kafka_conf_t *, void *);
        void *(*opaque)(const rd_kafka_t *);
        const char *(*name)(const rd_kafka_t *);
        rd_kafka_t *(*new_)(int, rd_kafka_conf_t *, char *, size_t);
        void (*destroy_flags)(rd_kafka_t *, int);
        int (*set_log_queue)(rd_kafka_t *, rd_kafka_queue_t *);
        int (*poll_set_consumer)(rd_kafka_t *);
        int (*consumer_close)(rd_kafka_t *);
        rd_kafka_queue_t *(*queue_get_consumer)(rd_kafka_t *);
        void (*queue_destroy)(rd_kafka_queue_t *);
        ssize_t (*consume_batch_queue)(rd_kafka_queue_t *, int, rd_kafka_message_t **, size_t);
        void (*message_destroy)(rd_kafka_message_t *);
        int64_t (*message_timestamp)(const rd_kafka_message_t *, int *);
        int (*message_headers)(const rd_kafka_message_t *, rd_kafka_headers_t **);
        int (*header_get_all)(const rd_kafka_headers_t *, size_t, const char **, const void **, size_t *);
        int (*header_get_last)(const rd_kafka_headers_t *, const char *, const void **, size_t *);
        int32_t (*message_leader_epoch)(const rd_kafka_message_t *);
        int32_t (*get_leader_epoch)(const rd_kafka_topic_partition_t *);
        rd_kafka_topic_partition_list_t *(*list_new)(int);
        void (*list_destroy)(rd_kafka_topic_partition_list_t *);
        rd_kafka_topic_partition_t *(*list_add)(rd_kafka_topic_partition_list_t *, const char *, int32_t);
        void (*set_leader_epoch)(rd_kafka_topic_partition_t *, int32_t);
        rd_kafka_error_t *(*incremental_assign)(rd_kafka_t *, const rd_kafka_topic_partition_list_t *);
        rd_kafka_error_t *(*incremental_unassign)(rd_kafka_t *, const rd_kafka_topic_partition_list_t *);
        int (*assignment)(rd_kafka_t *, rd_kafka_topic_partition_list_t **);
        int (*position)(rd_kafka_t *, rd_kafka_topic_partition_list_t *);
        int (*query_watermarks)(rd_kafka_t *, const char *, int32_t, int64_t *, int64_t *, int);
        int (*get_watermarks)(rd_kafka_t *, const char *, int32_t, int64_t *, int64_t *);
        int (*commit)(rd_kafka_t *, const rd_kafka_topic_partition_list_t *, int);
        rd_kafka_topic_t *(*topic_new)(rd_kafka_t *, const char *, void *);
        void (*topic_destroy)(rd_kafka_topic_t *);
        int (*metadata)(rd_kafka_t *, int, rd_kafka_topic_t *, const rd_kafka_metadata_t **, int);
        void (*metadata_destroy)(const rd_kafka_metadata_t *);
        const char *(*err2str)(int);
        int (*error_code)(const rd_kafka_error_t *);
        const char *(*error_string)(const rd_kafka_error_t *);
        int (*error_is_fatal)(const rd_kafka_error_t *);
        int (*error_is_retriable)(const rd_kafka_error_t *);
        void (*error_destroy)(rd_kafka_error_t *);
    } rk;

    static const struct { void *place; const char *name; } kd_functions[] = {
        {&rk.conf_new, "rd_kafka_conf_new"},
        {&rk.conf_destroy, "rd_kafka_conf_destroy"},
        {&rk.conf_set, "rd_kafka_conf_set"},
        {&rk.conf_set_log_cb, "rd_kafka_conf_set_log_cb"},
        {&rk.conf_set_error_cb, "rd_kafka_conf_set_error_cb"},
        {&rk.conf_set_opaque, "rd_kafka_conf_set_opaque"},
        {&rk.opaque, "rd_kafka_opaque"},
        {&rk.name, "rd_kafka_name"},
        {&rk.new_, "rd_kafka_new"},
        {&rk.destroy_flags, "rd_kafka_destroy_flags"},
        {&rk.set_log_queue, "rd_kafka_set_log_queue"},
        {&rk.poll_set_consumer, "rd_kafka_poll_set_consumer"},
        {&rk.consumer_close, "rd_kafka_consumer_close"},
        {&rk.queue_get_consumer, "rd_kafka_queue_get_consumer"},
        {&rk.queue_destroy, "rd_kafka_queue_destroy"},
        {&rk.consume_batch_queue, "rd_kafka_consume_batch_queue"},
        {&rk.message_destroy, "rd_kafka_message_destroy"},
        {&rk.message_timestamp, "rd_kafka_message_timestamp"},
        {&rk.message_headers, "rd_kafka_message_headers"},
        {&rk.header_get_all, "rd_kafka_header_get_all"},
        {&rk.header_get_last, "rd_kafka_header_get_last"},
        {&rk.message_leader_epoch, "rd_kafka_message_leader_epoch"},
        {&rk.get_leader_epoch, "rd_kafka_topic_partition_get_leader_epoch"},
        {&rk.list_new, "rd_kafka_topic_partition_list_new"},
        {&rk.list_destroy, "rd_kafka_topic_partition_list_destroy"},
        {&rk.list_add, "rd_kafka_topic_partition_list_add"},
        {&rk.set_leader_epoch, "rd_kafka_topic_partition_set_leader_epoch"},
        {&rk.incremental_assign, "rd_kafka_incremental_assign"},
        {&rk.incremental_unassign, "rd_kafka_incremental_unassign"},
        {&rk.assignment, "rd_kafka_assignment"},
        {&rk.position, "rd_kafka_position"},
        {&rk.query_watermarks, "rd_kafka_query_watermark_offsets"},
        {&rk.get_watermarks, "rd_kafka_get_watermark_offsets"},
        {&rk.commit, "rd_kafka_commit"},
        {&rk.topic_new, "rd_kafka_topic_new"},
        {&rk.topic_destroy, "rd_kafka_topic_destroy"},
        {&rk.metadata, "rd_kafka_metadata"},
        {&rk.metadata_destroy, "rd_kafka_metadata_destroy"},
        {&rk.err2str, "rd_kafka_err2str"},
        {&rk.error_code, "rd_kafka_error_code"},
        {&rk.error_string, "rd_kafka_error_string"},
        {&rk.error_is_fatal, "rd_kafka_error_is_fatal"},
        {&rk.error_is_retriable, "rd_kafka_error_is_retriable"},
        {&rk.error_destroy, "rd_kafka_error_destroy"},
        {0, 0},
    };
    """
    ctypedef struct rd_kafka_t
    ctypedef struct rd_kafka_conf_t
    ctypedef struct rd_kafka_queue_t
    ctypedef struct rd_kafka_topic_t
    ctypedef struct rd_kafka_headers_t
    ctypedef struct rd_kafka_error_t
    ctypedef struct rd_kafka_metadata_t
    ctypedef struct rd_kafka_message_t:
        int err
        int32_t partition
        void *payload
        size_t len
        void *key
        size_t key_len
        int64_t offset
    ctypedef struct rd_kafka_topic_partition_t:
        char *topic
        int32_t partition
        int64_t offset
        void *metadata
        size_t metadata_size
        int err
    ctypedef struct rd_kafka_topic_partition_list_t:
        int cnt
        rd_kafka_topic_partition_t *elems
    ctypedef void (*kd_log_cb)(const rd_kafka_t *, int, const char *, const char *) noexcept
    ctypedef void (*kd_error_cb)(rd_kafka_t *, int, const char *, void *) noexcept

    ctypedef struct kd_function:
        void *place
        const char *name
    kd_function *kd_functions

    # called as functions of the table
    rd_kafka_conf_t *conf_new "rk.conf_new"() nogil
    void conf_destroy "rk.conf_destroy"(rd_kafka_conf_t *) nogil
    int conf_set "rk.conf_set"(rd_kafka_conf_t *, const char *, const char *, char *, size_t) nogil
    void conf_set_log_cb "rk.conf_set_log_cb"(rd_kafka_conf_t *, kd_log_cb) nogil
    void conf_set_error_cb "rk.conf_set_error_cb"(rd_kafka_conf_t *, kd_error_cb) nogil
    void conf_set_opaque "rk.conf_set_opaque"(rd_kafka_conf_t *, void *) nogil
    void *rd_opaque "rk.opaque"(const rd_kafka_t *) nogil
    const char *rd_name "rk.name"(const rd_kafka_t *) nogil
    rd_kafka_t *rd_new "rk.new_"(int, rd_kafka_conf_t *, char *, size_t) nogil
    void rd_destroy "rk.destroy_flags"(rd_kafka_t *, int) nogil
    int set_log_queue "rk.set_log_queue"(rd_kafka_t *, rd_kafka_queue_t *) nogil
    int poll_set_consumer "rk.poll_set_consumer"(rd_kafka_t *) nogil
    int consumer_close "rk.consumer_close"(rd_kafka_t *) nogil
    rd_kafka_queue_t *queue_get_consumer "rk.queue_get_consumer"(rd_kafka_t *) nogil
    void queue_destroy "rk.queue_destroy"(rd_kafka_queue_t *) nogil
    ssize_t consume_batch "rk.consume_batch_queue"(rd_kafka_queue_t *, int, rd_kafka_message_t **, size_t) nogil
    void message_destroy "rk.message_destroy"(rd_kafka_message_t *) nogil
    int64_t message_timestamp "rk.message_timestamp"(const rd_kafka_message_t *, int *) nogil
    int message_headers "rk.message_headers"(const rd_kafka_message_t *, rd_kafka_headers_t **) nogil
    int header_get_all "rk.header_get_all"(const rd_kafka_headers_t *, size_t, const char **, const void **, size_t *) nogil
    int header_get_last "rk.header_get_last"(const rd_kafka_headers_t *, const char *, const void **, size_t *) nogil
    int32_t message_leader_epoch "rk.message_leader_epoch"(const rd_kafka_message_t *) nogil
    int32_t get_leader_epoch "rk.get_leader_epoch"(const rd_kafka_topic_partition_t *) nogil
    rd_kafka_topic_partition_list_t *list_new "rk.list_new"(int) nogil
    void list_destroy "rk.list_destroy"(rd_kafka_topic_partition_list_t *) nogil
    rd_kafka_topic_partition_t *list_add "rk.list_add"(rd_kafka_topic_partition_list_t *, const char *, int32_t) nogil
    void set_leader_epoch "rk.set_leader_epoch"(rd_kafka_topic_partition_t *, int32_t) nogil
    rd_kafka_error_t *rd_incremental_assign "rk.incremental_assign"(rd_kafka_t *, const rd_kafka_topic_partition_list_t *) nogil
    rd_kafka_error_t *rd_incremental_unassign "rk.incremental_unassign"(rd_kafka_t *, const rd_kafka_topic_partition_list_t *) nogil
    int rd_assignment "rk.assignment"(rd_kafka_t *, rd_kafka_topic_partition_list_t **) nogil
    int rd_position "rk.position"(rd_kafka_t *, rd_kafka_topic_partition_list_t *) nogil
    int query_watermarks "rk.query_watermarks"(rd_kafka_t *, const char *, int32_t, int64_t *, int64_t *, int) nogil
    int get_watermarks "rk.get_watermarks"(rd_kafka_t *, const char *, int32_t, int64_t *, int64_t *) nogil
    int rd_commit "rk.commit"(rd_kafka_t *, const rd_kafka_topic_partition_list_t *, int) nogil
    rd_kafka_topic_t *topic_new "rk.topic_new"(rd_kafka_t *, const char *, void *) nogil
    void topic_destroy "rk.topic_destroy"(rd_kafka_topic_t *) nogil
    int rd_metadata "rk.metadata"(rd_kafka_t *, int, rd_kafka_topic_t *, const rd_kafka_metadata_t **, int) nogil
    void metadata_destroy "rk.metadata_destroy"(const rd_kafka_metadata_t *) nogil
    const char *err2str "rk.err2str"(int) nogil
    int error_code "rk.error_code"(const rd_kafka_error_t *) nogil
    const char *error_string "rk.error_string"(const rd_kafka_error_t *) nogil
    int error_is_fatal "rk.error_is_fatal"(const rd_kafka_error_t *) nogil
    int error_is_retriable "rk.error_is_retriable"(const rd_kafka_error_t *) nogil
    void error_destroy "rk.error_destroy"(rd_kafka_error_t *) nogil

cdef enum:
    _CONSUMER = 1  # rd_kafka_type_t
    _NO_CLOSE = 8  # RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE
    _MOST = 2000  # records of one call
    _TEXT = 512  # bytes of an error text
    _NO_TIMESTAMP = 0  # RD_KAFKA_TIMESTAMP_NOT_AVAILABLE


cdef int _load() except -1:
    """Find librdkafka's functions in the library that confluent-kafka has loaded."""
    cdef bytes path = os.fsencode(cimpl.__file__)
    cdef void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL)
    if library == NULL:
        raise ImportError(f"confluent-kafka's library cannot be opened: {dlerror().decode()}")
    cdef int number = 0
    cdef void *found
    while kd_functions[number].place != NULL:
        found = dlsym(library, kd_functions[number].name)
        if found == NULL:
            raise ImportError(f"librdkafka has no {kd_functions[number].name.decode()}")
        memcpy(kd_functions[number].place, &found, sizeof(void *))
        number += 1
    return 0


_load()


#: How often this process was forked from one that reads: what was made before belongs to the parent.
cdef int _generation = 0


#: Messages of librdkafka that records keep.
cdef Py_ssize_t _kept = 0


def _forked():
    global _generation, _kept
    _generation += 1
    _kept = 0


def kept():
    """Return how many messages of librdkafka records keep in this process: for tests."""
    return _kept


os.register_at_fork(after_in_child=_forked)


@cython.final
@cython.no_gc
cdef class _Handle:
    """One client of librdkafka, and the list of the records that keep a message of it."""

    cdef rd_kafka_t *rk
    cdef str topic
    cdef int generation
    #: the last record of the list; records are linked with one another, without counted references
    cdef void *last

    cdef void end(self):
        """Detach all records, and end the client."""
        cdef rd_kafka_t *rk = self.rk
        if rk == NULL or self.generation != _generation:  # a forked child has none of the client's threads
            return
        self.rk = NULL
        while self.last != NULL:
            (<Record>self.last).detach()
        with nogil:
            rd_destroy(rk, _NO_CLOSE)

    def __dealloc__(self):
        self.end()


@cython.final
@cython.no_gc
@cython.freelist(4000)
cdef class Record:
    """A record, or an event such as the end of a partition, with the methods of confluent-kafka's Message."""

    cdef rd_kafka_message_t *_message
    cdef _Handle _handle
    #: the neighbours in the list of the handle, until `detach`
    cdef void *_before
    cdef void *_after
    #: after `detach`: value, key, headers, timestamp, leader epoch, error
    cdef tuple _parts
    cdef int32_t _partition
    cdef int64_t _offset
    cdef Py_ssize_t _size

    def __dealloc__(self):
        if self._message != NULL and self._handle.generation == _generation:
            self._unlink()
            message_destroy(self._message)

    cdef inline void _unlink(self):
        global _kept
        _kept -= 1
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
        while header_get_all(headers, index, &name, &value, &size) == 0:
            content = None
            if value != NULL:
                content = PyBytes_FromStringAndSize(<const char *>value, <Py_ssize_t>size)
            found.append(((<bytes>name).decode(), content))
            index += 1
        return found

    def latency(self):
        """None, as of every consumed message."""
        return None

    def detach(self):
        """Copy the parts, and free librdkafka's message: it keeps the whole answer of Kafka it came in."""
        cdef rd_kafka_message_t *message = self._message
        if message == NULL:
            return
        self._parts = (
            self.value(), self.key(), self.headers(), self.timestamp(), self.leader_epoch(), self.error()
        )
        self._unlink()
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


cdef object _failed(int code):
    return KafkaException(KafkaError(code, err2str(code).decode(errors="replace")))


cdef int _check(rd_kafka_error_t *error) except -1:
    """Raise KafkaException for an error, and free it."""
    if error == NULL:
        return 0
    made = KafkaException(
        KafkaError(
            error_code(error),
            error_string(error).decode(errors="replace"),
            bool(error_is_fatal(error)),
            bool(error_is_retriable(error)),
        )
    )
    error_destroy(error)
    raise made


cdef void _log(const rd_kafka_t *rk, int level, const char *facility, const char *text) noexcept with gil:
    """Pass a line of librdkafka's log on. Called while the consumer is read, in the reading thread."""
    cdef void *opaque = rd_opaque(rk)
    cdef Consumer consumer
    if opaque == NULL:
        return
    consumer = <Consumer>opaque
    try:
        consumer._told(level, facility, rd_name(rk), text)
    except BaseException as error:
        consumer._raised = error


cdef void _error(rd_kafka_t *rk, int code, const char *reason, void *opaque) noexcept with gil:
    """Pass an error of the client on; as `_log`."""
    cdef Consumer consumer
    if opaque == NULL:
        return
    consumer = <Consumer>opaque
    try:
        if consumer._on_error is not None:
            consumer._on_error(KafkaError(code, reason.decode(errors="replace")))
    except BaseException as error:
        consumer._raised = error


#: librdkafka's levels of lines (syslog) as levels of Python's logging, as confluent-kafka has them.
_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)


cdef class Consumer:
    """The methods of confluent-kafka's Consumer that the readers use. One thread uses it at a time."""

    cdef _Handle _handle
    cdef rd_kafka_queue_t *_queue
    cdef rd_kafka_message_t *_read[_MOST]
    cdef object _logger
    cdef object _on_error
    cdef object _raised
    cdef bint _closed

    def __init__(self, config, *, logger, topic):
        """`config` has texts, numbers and bools, and perhaps `error_cb`; `topic` is the one that is read.

        Raises KafkaException for a setting that librdkafka refuses, ValueError for one that only
        confluent-kafka takes: another callable.
        """
        cdef char text[_TEXT]
        cdef rd_kafka_conf_t *conf
        config = dict(config)
        self._on_error = config.pop("error_cb", None)
        for name, value in config.items():
            if callable(value):
                raise ValueError(name)
        self._logger = logger
        self._raised = None
        self._handle = _Handle()
        self._handle.generation = _generation
        self._handle.topic = topic
        conf = conf_new()
        try:
            for name, value in {**config, "log.queue": True}.items():
                said = ("true" if value else "false") if isinstance(value, bool) else str(value)
                if conf_set(conf, name.encode(), said.encode(), text, _TEXT):
                    raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text.decode(errors="replace")))
            conf_set_log_cb(conf, _log)
            conf_set_error_cb(conf, _error)
            conf_set_opaque(conf, <void *>self)
            self._handle.rk = rd_new(_CONSUMER, conf, text, _TEXT)
            if self._handle.rk == NULL:
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text.decode(errors="replace")))
        except BaseException:
            conf_destroy(conf)
            raise
        poll_set_consumer(self._handle.rk)
        set_log_queue(self._handle.rk, NULL)
        self._queue = queue_get_consumer(self._handle.rk)

    cdef _told(self, int level, const char *facility, const char *name, const char *text):
        parts = [each.decode(errors="replace") for each in (<bytes>facility, <bytes>name, <bytes>text)]
        self._logger.log(_LEVELS[min(level, 7)], "%s [%s] %s", *parts)

    def __dealloc__(self):
        if self._queue != NULL and self._handle.generation == _generation:
            queue_destroy(self._queue)

    # -- reading

    def consume(self, most, timeout):
        """Return at most so many records and events; wait at most `timeout` seconds for the first one."""
        cdef size_t limit = min(most, _MOST)
        cdef int ms = <int>(timeout * 1000)
        cdef ssize_t count
        cdef ssize_t index
        cdef Record record
        cdef rd_kafka_message_t *message
        cdef _Handle handle = self._handle
        global _kept
        self._check_open()
        with nogil:
            count = consume_batch(self._queue, ms, self._read, limit)
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
        if self._raised is not None:
            error, self._raised = self._raised, None
            raise error
        return found

    def poll(self, timeout):
        """Wait for one record or event; None: none came."""
        found = self.consume(1, timeout)
        return found[0] if found else None

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
        cdef const rd_kafka_metadata_t *found
        cdef rd_kafka_topic_t *asked = NULL
        cdef int code
        cdef int ms = <int>(timeout * 1000)
        self._check_open()
        if topic is not None:
            asked = topic_new(self._handle.rk, topic.encode(), NULL)
        with nogil:
            code = rd_metadata(self._handle.rk, asked == NULL, asked, &found, ms)
            if asked != NULL:
                topic_destroy(asked)
            if code == 0:
                metadata_destroy(found)
        if code:
            raise _failed(code)

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


# -- what is done for every delivery


cdef enum:
    # of kafkadur/consumer/chunk.py, which has all verdicts; this and that are the only ones to write them
    _HANDED = 1
    _ACKED = 2


@cython.no_gc
@cython.freelist(1000)
cdef class Handed:
    """As `kafkadur.consumer.handed.Handed`, compiled."""

    cdef public object _chunk
    cdef public Py_ssize_t _index
    cdef public object _message

    def __init__(self, chunk, Py_ssize_t index, message):
        """Record `index` of a chunk."""
        self._chunk = chunk
        self._index = index
        self._message = message

    @property
    def value(self):
        """Payload, None for a tombstone; or the object that the deserializer makes of it.

        It is deserialized at the first access, in the accessing thread. Raises `Undecodable`.
        """
        if type(self._message) is Record:
            return (<Record>self._message).value()
        return self._message.value()

    @property
    def key(self):
        """Key, None if the message has none; or the object that the deserializer makes of it, as `value`."""
        if type(self._message) is Record:
            return (<Record>self._message).key()
        return self._message.key()

    def ack_nowait(self):
        """Acknowledge locally; the next exchange confirms it (within the unconfirmed budget).

        Raises `AlreadySettled` or `LeaseLost`.
        """
        cdef bytearray verdicts = self._chunk.verdicts
        if verdicts[self._index] == _HANDED:  # with the range checked: the end of a chunk may be taken back
            verdicts[self._index] = _ACKED
        else:
            self._refuse()

    def _refuse(self):
        raise NotImplementedError


@cython.final
cdef class Sift:
    """As `kafkadur.consumer.handed.pure_sift`, compiled."""

    cdef object _block
    cdef object _leases
    cdef object _gate
    cdef object _losses
    cdef object _stale

    def __init__(self, block, leases, gate, losses, stale):
        self._block = block
        self._leases = leases
        self._gate = gate
        self._losses = losses
        self._stale = stale

    def __iter__(self):
        return self

    def __next__(self):
        if self._gate.closing:
            raise StopIteration
        delivery = next(self._block)
        while self._leases.losses != self._losses and self._stale(delivery):
            delivery = next(self._block)
        return delivery
