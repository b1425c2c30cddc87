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
    typedef struct { void *ptr; size_t size; } kd_mem;
    typedef struct { const char *name; const void *val; ssize_t size; } kd_header;
    typedef union {
        rd_kafka_topic_t *rkt;
        int i;
        int32_t i32;
        int64_t i64;
        kd_mem mem;
        kd_header header;
        void *ptr;
        char _pad[64];
    } kd_value;
    typedef struct {
        int vtype;
        kd_value u;
    } rd_kafka_vu_t;
    typedef void (*kd_log_cb)(const rd_kafka_t *, int, const char *, const char *);
    typedef void (*kd_error_cb)(rd_kafka_t *, int, const char *, void *);
    typedef int (*kd_stats_cb)(rd_kafka_t *, char *, size_t, void *);
    typedef void (*kd_report_cb)(rd_kafka_t *, const rd_kafka_message_t *, void *);

    static struct {
        rd_kafka_conf_t *(*conf_new)(void);
        void (*conf_destroy)(rd_kafka_conf_t *);
        int (*conf_set)(rd_kafka_conf_t *, const char *, const char *, char *, size_t);
        void (*conf_set_log_cb)(rd_kafka_conf_t *, kd_log_cb);
        void (*conf_set_error_cb)(rd_kafka_conf_t *, kd_error_cb);
        void (*conf_set_stats_cb)(rd_kafka_conf_t *, kd_stats_cb);
        void (*conf_set_opaque)(rd_kafka_conf_t *, void *);
        void *(*opaque)(const rd_kafka_t *);
        const char *(*name)(const rd_kafka_t *);
        rd_kafka_t *(*new_)(int, rd_kafka_conf_t *, char *, size_t);
        void (*destroy_flags)(rd_kafka_t *, int);
        int (*set_log_queue)(rd_kafka_t *, rd_kafka_queue_t *);
        int (*poll_set_consumer)(rd_kafka_t *);
        int (*consumer_close)(rd_kafka_t *);
        rd_kafka_queue_t *(*queue_get_consumer)(rd_kafka_t *);
        void (*queue_yield)(rd_kafka_queue_t *);
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
        int (*fatal_error)(rd_kafka_t *, char *, size_t);
        void (*set_dr_msg_cb)(rd_kafka_conf_t *, kd_report_cb);
        int (*poll)(rd_kafka_t *, int);
        int (*flush)(rd_kafka_t *, int);
        int (*purge)(rd_kafka_t *, int);
        int (*outq_len)(rd_kafka_t *);
        rd_kafka_error_t *(*produceva)(rd_kafka_t *, const rd_kafka_vu_t *, size_t);
        const char *(*topic_name)(const rd_kafka_topic_t *);
        int (*last_error)(void);
        int (*version)(void);
    } rk;

    static const struct { void *place; const char *name; } kd_functions[] = {
        {&rk.conf_new, "rd_kafka_conf_new"},
        {&rk.conf_destroy, "rd_kafka_conf_destroy"},
        {&rk.conf_set, "rd_kafka_conf_set"},
        {&rk.conf_set_log_cb, "rd_kafka_conf_set_log_cb"},
        {&rk.conf_set_error_cb, "rd_kafka_conf_set_error_cb"},
        {&rk.conf_set_stats_cb, "rd_kafka_conf_set_stats_cb"},
        {&rk.conf_set_opaque, "rd_kafka_conf_set_opaque"},
        {&rk.opaque, "rd_kafka_opaque"},
        {&rk.name, "rd_kafka_name"},
        {&rk.new_, "rd_kafka_new"},
        {&rk.destroy_flags, "rd_kafka_destroy_flags"},
        {&rk.set_log_queue, "rd_kafka_set_log_queue"},
        {&rk.poll_set_consumer, "rd_kafka_poll_set_consumer"},
        {&rk.consumer_close, "rd_kafka_consumer_close"},
        {&rk.queue_get_consumer, "rd_kafka_queue_get_consumer"},
        {&rk.queue_yield, "rd_kafka_queue_yield"},
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
        {&rk.fatal_error, "rd_kafka_fatal_error"},
        {&rk.set_dr_msg_cb, "rd_kafka_conf_set_dr_msg_cb"},
        {&rk.poll, "rd_kafka_poll"},
        {&rk.flush, "rd_kafka_flush"},
        {&rk.purge, "rd_kafka_purge"},
        {&rk.outq_len, "rd_kafka_outq_len"},
        {&rk.produceva, "rd_kafka_produceva"},
        {&rk.topic_name, "rd_kafka_topic_name"},
        {&rk.last_error, "rd_kafka_last_error"},
        {&rk.version, "rd_kafka_version"},
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
        rd_kafka_topic_t *rkt
        int32_t partition
        void *payload
        size_t len
        void *key
        size_t key_len
        int64_t offset
        void *_private
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
    ctypedef struct kd_mem:
        void *ptr
        size_t size
    ctypedef struct kd_header:
        const char *name
        const void *val
        ssize_t size
    ctypedef union kd_value:
        rd_kafka_topic_t *rkt
        int i
        int32_t i32
        int64_t i64
        kd_mem mem
        kd_header header
        void *ptr
    ctypedef struct rd_kafka_vu_t:
        int vtype
        kd_value u
    ctypedef void (*kd_log_cb)(const rd_kafka_t *, int, const char *, const char *) noexcept
    ctypedef void (*kd_error_cb)(rd_kafka_t *, int, const char *, void *) noexcept
    ctypedef int (*kd_stats_cb)(rd_kafka_t *, char *, size_t, void *) noexcept
    ctypedef void (*kd_report_cb)(rd_kafka_t *, const rd_kafka_message_t *, void *) noexcept nogil

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
    void conf_set_stats_cb "rk.conf_set_stats_cb"(rd_kafka_conf_t *, kd_stats_cb) nogil
    void conf_set_opaque "rk.conf_set_opaque"(rd_kafka_conf_t *, void *) nogil
    void *rd_opaque "rk.opaque"(const rd_kafka_t *) nogil
    const char *rd_name "rk.name"(const rd_kafka_t *) nogil
    rd_kafka_t *rd_new "rk.new_"(int, rd_kafka_conf_t *, char *, size_t) nogil
    void rd_destroy "rk.destroy_flags"(rd_kafka_t *, int) nogil
    int set_log_queue "rk.set_log_queue"(rd_kafka_t *, rd_kafka_queue_t *) nogil
    int poll_set_consumer "rk.poll_set_consumer"(rd_kafka_t *) nogil
    int consumer_close "rk.consumer_close"(rd_kafka_t *) nogil
    rd_kafka_queue_t *queue_get_consumer "rk.queue_get_consumer"(rd_kafka_t *) nogil
    void queue_yield "rk.queue_yield"(rd_kafka_queue_t *) nogil
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
    int rd_fatal_error "rk.fatal_error"(rd_kafka_t *, char *, size_t) nogil
    void rd_set_dr_msg_cb "rk.set_dr_msg_cb"(rd_kafka_conf_t *, kd_report_cb) nogil
    int rd_poll "rk.poll"(rd_kafka_t *, int) nogil
    int rd_flush "rk.flush"(rd_kafka_t *, int) nogil
    int rd_purge "rk.purge"(rd_kafka_t *, int) nogil
    int rd_outq_len "rk.outq_len"(rd_kafka_t *) nogil
    rd_kafka_error_t *rd_produceva "rk.produceva"(rd_kafka_t *, const rd_kafka_vu_t *, size_t) nogil
    const char *rd_topic_name "rk.topic_name"(const rd_kafka_topic_t *) nogil
    int rd_last_error "rk.last_error"() nogil
    int rd_version "rk.version"() nogil

cdef enum:
    _PRODUCER = 0  # rd_kafka_type_t
    _CONSUMER = 1
    _NO_CLOSE = 8  # RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE
    _MOST = 10000  # records of one call
    _GONE = 20000  # records whose messages the next read frees
    _FEW = 1000  # for so many of either there is room at first
    _KNOWN = 0x021000ff  # the last version of librdkafka whose messages lie in memory as `_lacks_headers` says
    _AHEAD = 4  # records: as far ahead of a loop is their memory fetched, in two steps
    _TEXT = 512  # bytes of an error text
    _NO_TIMESTAMP = 0  # RD_KAFKA_TIMESTAMP_NOT_AVAILABLE
    _COPY = 2  # RD_KAFKA_MSG_F_COPY
    _PURGE_ALL = 3  # RD_KAFKA_PURGE_F_QUEUE and _INFLIGHT
    _FATAL = -150  # RD_KAFKA_RESP_ERR__FATAL
    _QUEUE_FULL = -184  # RD_KAFKA_RESP_ERR__QUEUE_FULL
    # rd_kafka_vtype_t
    _V_TOPIC = 2
    _V_PARTITION = 3
    _V_VALUE = 4
    _V_KEY = 5
    _V_OPAQUE = 6
    _V_FLAGS = 7
    _V_TIMESTAMP = 8
    _V_HEADER = 9


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


