# -- what is done for every delivery


cdef enum:
    # of kafkadur/consumer/chunk.py, which has all verdicts; this and that are the only ones to write them
    _HANDED = 1
    _ACKED = 2

#: the arguments that `tp_new` is called with: Cython 3.3 reads the tuple, so NULL ends the process
cdef tuple _NO_ARGUMENTS = ()


cdef class Marks:
    """As `kafkadur.consumer.marks.PureMarks`, compiled."""

    cdef public bint closing
    cdef public Py_ssize_t losses


@cython.no_gc
@cython.auto_pickle(False)  # a copy of the fields would not be counted
cdef class Handed:
    """As `kafkadur.consumer.delivery_path.PureHanded`, compiled."""

    cdef public object _chunk
    cdef public Py_ssize_t _index
    #: the verdicts of the chunk, which are one bytearray for good
    cdef bytearray _verdicts
    #: where the record is; None: it is not of the compiled client
    cdef _Slab _slab
    cdef Py_ssize_t _at
    #: the record, if it was asked for, or is not of the compiled client
    cdef object _made

    def __init__(self, chunk, Py_ssize_t index, message):
        """Record `index` of a chunk."""
        self._chunk = chunk
        self._verdicts = chunk.verdicts
        self._index = index
        self._made = message
        if type(message) is Record:
            self.place((<Record>message)._slab, (<Record>message)._at)

    def __dealloc__(self):
        if self._slab is not None:
            self._slab.leave(self._at, self._at + 1)

    cdef inline void place(self, _Slab slab, Py_ssize_t at) noexcept:
        """Say where the record is."""
        slab.use(at, at + 1)
        self._slab = slab
        self._at = at

    def __copy__(self):
        cdef type kind = type(self)
        cdef Handed made = <Handed>(<PyTypeObject *>kind).tp_new(kind, <PyObject *>_NO_ARGUMENTS, NULL)
        made._chunk = self._chunk
        made._verdicts = self._verdicts
        made._index = self._index
        made._made = self._made
        if self._slab is not None:
            made.place(self._slab, self._at)
        for name, value in getattr(self, "__dict__", {}).items():  # of what was deserialized
            setattr(made, name, value)
        return made

    @property
    def _message(self):
        if self._made is None and self._slab is not None:
            self._made = _record(self._slab, self._at)
        return self._made

    @property
    def value(self):
        """Payload, None for a tombstone; or the object that the deserializer makes of it.

        It is deserialized at the first access, in the accessing thread. Raises `Undecodable`.
        """
        return self._made.value() if self._slab is None else self._slab.value(self._at)

    @property
    def key(self):
        """Key, None if the message has none; or the object that the deserializer makes of it, as `value`."""
        return self._made.key() if self._slab is None else self._slab.key(self._at)

    def ack_nowait(self):
        """Acknowledge locally; the next exchange confirms it (within the unconfirmed budget).

        Raises `AlreadySettled` or `LeaseLost`.
        """
        cdef bytearray verdicts = self._verdicts
        if verdicts[self._index] == _HANDED:  # with the range checked: the end of a chunk may be taken back
            verdicts[self._index] = _ACKED
        else:
            self._refuse()

    def _refuse(self):
        raise NotImplementedError


@cython.final
cdef class _Deal:
    """Makes the deliveries of records of a chunk, one after the other."""

    cdef type _class
    cdef object _chunk
    cdef bytearray _verdicts
    cdef Py_ssize_t _next
    cdef Py_ssize_t _end
    #: the records from the first delivery on, and its index
    cdef object _messages
    cdef Py_ssize_t _start
    #: where record 0 of the chunk is; None: the records are not of one slab
    cdef _Slab _slab
    cdef Py_ssize_t _first

    def __iter__(self):
        return self

    def __length_hint__(self):
        return self._end - self._next

    def __next__(self):
        cdef Handed made
        cdef Py_ssize_t at = self._next
        if at >= self._end:
            raise StopIteration
        self._next = at + 1
        # without arguments, hence without `__init__`
        made = <Handed>(<PyTypeObject *>self._class).tp_new(self._class, <PyObject *>_NO_ARGUMENTS, NULL)
        made._chunk = self._chunk
        made._verdicts = self._verdicts
        made._index = at
        if self._slab is None:
            made._made = self._messages[at - self._start]
            if type(made._made) is Record:
                made.place((<Record>made._made)._slab, (<Record>made._made)._at)
        else:
            at += self._first
            _fetch_ahead(self._slab, at)
            made.place(self._slab, at)
        return made


def deal(type made, chunk, Py_ssize_t start, Py_ssize_t end):
    """As `kafkadur.consumer.delivery_path.pure_deal`, compiled; `made` is a class derived from `Handed`."""
    cdef _Deal deliveries = _Deal()
    # a class that makes its objects in another way is called, and not only derived
    if not issubclass(made, Handed) or (<PyTypeObject *>made).tp_new != (<PyTypeObject *>Handed).tp_new:
        raise TypeError(made)
    messages = chunk.messages
    deliveries._class = made
    deliveries._chunk = chunk
    deliveries._verdicts = chunk.verdicts
    deliveries._next = start
    deliveries._end = min(end, len(messages))
    deliveries._messages = messages[start:end]
    deliveries._start = start
    if type(messages) is Records:
        deliveries._slab = (<Records>messages)._slab
        deliveries._first = (<Records>messages)._start
    return deliveries, deliveries


@cython.final
cdef class Sift:
    """As `kafkadur.consumer.delivery_path.pure_sift`, compiled."""

    cdef object _block
    cdef Marks _marks
    cdef Py_ssize_t _losses
    cdef object _stale

    def __init__(self, block, Marks marks not None, Py_ssize_t losses, stale):
        self._block = block
        self._marks = marks
        self._losses = losses
        self._stale = stale

    def __iter__(self):
        return self

    def __next__(self):
        if self._marks.closing:
            raise StopIteration
        delivery = next(self._block)
        while self._marks.losses != self._losses and self._stale(delivery):
            delivery = next(self._block)
        return delivery
