# What clients that read and clients that write have in common: settings, errors, logs, forks.

#: How often this process was forked from one that has clients: what was made before belongs to the parent.
cdef int _generation = 0


def _forked():
    global _generation, _kept
    _generation += 1
    _kept = 0


os.register_at_fork(after_in_child=_forked)


#: librdkafka's levels of lines (syslog) as levels of Python's logging, as confluent-kafka has them.
_LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)


cdef class _Client:
    """Takes the lines of the log and the errors of one client of librdkafka, in the thread that calls it."""

    cdef object _logger
    #: the functions of the application, or None
    cdef object _on_error
    cdef object _on_statistics
    #: what a callback has raised
    cdef object _raised

    cdef _tell(self, int level, const char *facility, const char *name, const char *text):
        parts = [each.decode(errors="replace") for each in (<bytes>facility, <bytes>name, <bytes>text)]
        self._logger.log(_LEVELS[min(level, 7)], "%s [%s] %s", *parts)

    cdef dict _without_functions(self, config):
        """Return the settings without those functions that this client calls itself."""
        config = dict(config)
        self._on_error = config.pop("error_cb", None)
        self._on_statistics = config.pop("stats_cb", None)
        return config

    cdef int _raise(self) except -1:
        """Raise what a callback has raised."""
        if self._raised is not None:
            error, self._raised = self._raised, None
            raise error
        return 0

    cdef rd_kafka_t *_made(self, int kind, dict config, rd_kafka_conf_t *conf) except NULL:
        """Return a client with these settings, and those of `conf`.

        Raises KafkaException for a setting that librdkafka refuses, ValueError for one that only
        confluent-kafka takes: what is neither text nor number.
        """
        cdef char text[_TEXT]
        cdef rd_kafka_t *made
        cdef bytes raw
        cdef const char *value
        try:
            for name, said in config.items():
                if said is None:
                    value = NULL  # its default
                elif isinstance(said, (str, int, float)):
                    raw = (str(said).lower() if isinstance(said, bool) else str(said)).encode()
                    value = raw
                else:
                    raise ValueError(name)
                if conf_set(conf, name.encode(), value, text, _TEXT):
                    raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text.decode(errors="replace")))
            if conf_set(conf, "log.queue", "true", text, _TEXT):
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text.decode(errors="replace")))
            conf_set_log_cb(conf, _log)
            conf_set_error_cb(conf, _error)
            if self._on_statistics is not None:
                conf_set_stats_cb(conf, _statistics)
            conf_set_opaque(conf, <void *>self)
            made = rd_new(kind, conf, text, _TEXT)
            if made == NULL:
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text.decode(errors="replace")))
        except BaseException:
            conf_destroy(conf)
            raise
        set_log_queue(made, NULL)
        return made


cdef void _log(const rd_kafka_t *rk, int level, const char *facility, const char *text) noexcept with gil:
    """Pass a line of librdkafka's log on."""
    cdef void *opaque = rd_opaque(rk)
    cdef _Client client
    if opaque == NULL:
        return
    client = <_Client>opaque
    try:
        client._tell(level, facility, rd_name(rk), text)
    except BaseException as error:
        client._raised = error


cdef void _error(rd_kafka_t *rk, int code, const char *reason, void *opaque) noexcept with gil:
    """Pass an error of the client on; of a fatal one its cause."""
    cdef _Client client
    cdef char text[_TEXT]
    if opaque == NULL:
        return
    client = <_Client>opaque
    try:
        if client._on_error is None:
            return
        if code == _FATAL:
            code = rd_fatal_error(rk, text, _TEXT)
            client._on_error(KafkaError(code, text.decode(errors="replace"), True))
        else:
            client._on_error(KafkaError(code, reason.decode(errors="replace")))
    except BaseException as error:
        client._raised = error


cdef int _statistics(rd_kafka_t *rk, char *text, size_t length, void *opaque) noexcept with gil:
    """Pass the statistics of the client on, a text in JSON; returns 0: librdkafka frees it."""
    cdef _Client client
    if opaque != NULL:
        client = <_Client>opaque
        try:
            client._on_statistics(text[:length].decode(errors="replace"))
        except BaseException as error:
            client._raised = error
    return 0


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


cdef int _ask(rd_kafka_t *rk, topic, timeout) except -1:
    """Ask for metadata of a topic (None: of all); raises KafkaException if no broker answers in time."""
    cdef const rd_kafka_metadata_t *found
    cdef rd_kafka_topic_t *asked = NULL
    cdef int code
    cdef int ms = <int>(timeout * 1000)
    if topic is not None:
        asked = topic_new(rk, topic.encode(), NULL)
    with nogil:
        code = rd_metadata(rk, asked == NULL, asked, &found, ms)
        if asked != NULL:
            topic_destroy(asked)
        if code == 0:
            metadata_destroy(found)
    if code:
        raise _failed(code)
    return 0
