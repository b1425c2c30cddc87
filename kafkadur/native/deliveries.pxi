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
