# cython: language_level=3
"""Reads and writes Kafka with librdkafka's own functions: without confluent-kafka's Message objects.

A `Message` of confluent-kafka takes half a microsecond to make, which is most of the time of reading. Here
librdkafka's messages are kept, and Python objects of records and of their parts are made when they are asked for.
`Consumer` has the methods of confluent-kafka's Consumer that the readers use, `Record` those of its Message,
`Producer` those of its Producer that the producer uses, so that either can be taken (`kafkadur/fetch/native.py`,
`kafkadur/producer/client.py`).

The functions are those of the library that confluent-kafka has loaded: there is no second librdkafka. Layouts and
signatures are the public ones of rdkafka.h. This is one module, in parts by subject:

- `librdkafka.pxi`: the functions of librdkafka;
- `client.pxi`: what clients that read and clients that write have in common;
- `records.pxi`: records, and the messages of librdkafka that they keep;
- `reading.pxi`: the client that reads;
- `producing.pxi`: the client that writes;
- `deliveries.pxi`: what is done for every delivery.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, strlen

import os

cimport cython

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka import cimpl

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define kafkadur_prefetch(place) __builtin_prefetch(place)
    #else
    #define kafkadur_prefetch(place) ((void)(place))
    #endif
    """
    # has a place of memory brought near; changes nothing, and the place need not be valid
    void prefetch "kafkadur_prefetch"(const void *) noexcept nogil

cdef extern from "Python.h":
    int Py_DTSF_ADD_DOT_0
    char *PyOS_double_to_string(double, char, int, int, int *) except NULL

include "librdkafka.pxi"
include "client.pxi"
include "records.pxi"
include "reading.pxi"
include "producing.pxi"
include "deliveries.pxi"
