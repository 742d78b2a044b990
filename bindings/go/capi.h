// The C ABI in a form that suits cgo: handles are numbers, so that none is taken for a pointer into Go's memory; what a
// call gives comes back as a struct, so that no Go variable is passed by its address.
#ifndef PROXYCFG_GO_CAPI_H
#define PROXYCFG_GO_CAPI_H

#include <proxycfg.h>

typedef struct pc_result {
    int32_t code;
    proxycfg_error *error;
    uint64_t number;
    uintptr_t handle;
    proxycfg_text *text;
    const void *data;
    size_t len;
} pc_result;


static inline proxycfg_str pc_str(const char *data, size_t len) {
    proxycfg_str made = {data, len};
    return made;
}

static inline proxycfg_proxy_id pc_proxy_id(const char *id, size_t id_len, const char *node, size_t node_len,
                                            const char *token, size_t token_len) {
    proxycfg_proxy_id made = {{id, id_len}, {node, node_len}, {token, token_len}};
    return made;
}

// What Go exports. The user data is the number of a cgo.Handle, which must not be taken for a pointer either.
void pcGoSnapshot(uintptr_t user_data, uintptr_t snapshot);
void pcGoSubscribe(uintptr_t user_data, proxycfg_query *query);
void pcGoUnsubscribe(uintptr_t user_data, uint64_t subscription);
void pcGoRefresh(uintptr_t user_data, uint64_t subscription);
void pcGoLog(uintptr_t user_data, int32_t level, proxycfg_str target, proxycfg_str message);
void pcGoFreed(uintptr_t user_data);

static inline void pc_on_snapshot(void *user_data, const proxycfg_snapshot *snapshot) {
    // Go owns what it is given.
    pcGoSnapshot((uintptr_t)user_data, (uintptr_t)proxycfg_snapshot_retain(snapshot));
}

static inline void pc_on_subscribe(void *user_data, const proxycfg_query *query) {
    pcGoSubscribe((uintptr_t)user_data, (proxycfg_query *)query);
}

static inline void pc_on_unsubscribe(void *user_data, uint64_t subscription) {
    pcGoUnsubscribe((uintptr_t)user_data, subscription);
}

static inline void pc_on_refresh(void *user_data, uint64_t subscription) {
    pcGoRefresh((uintptr_t)user_data, subscription);
}

static inline void pc_on_log(void *user_data, int32_t level, proxycfg_str target, proxycfg_str message) {
    pcGoLog((uintptr_t)user_data, level, target, message);
}

static inline void pc_on_freed(void *user_data) { pcGoFreed((uintptr_t)user_data); }

static inline pc_result pc_source_new(uintptr_t user_data) {
    pc_result r = {0};
    proxycfg_source *source = NULL;
    proxycfg_source_functions functions = {0};
    functions.size = sizeof functions;
    functions.subscribe = pc_on_subscribe;
    functions.unsubscribe = pc_on_unsubscribe;
    functions.refresh = pc_on_refresh;
    r.code = proxycfg_source_new(&functions, (void *)user_data, pc_on_freed, &source, &r.error);
    r.handle = (uintptr_t)source;
    return r;
}

static inline pc_result pc_source_answer(uintptr_t source, uint64_t subscription, const char *json, size_t len) {
    pc_result r = {0};
    r.code = proxycfg_source_answer((proxycfg_source *)source, subscription, pc_str(json, len), &r.error);
    return r;
}

static inline pc_result pc_source_answer_batch(uintptr_t source, const proxycfg_answer *answers, size_t count) {
    pc_result r = {0};
    r.code = proxycfg_source_answer_batch((proxycfg_source *)source, answers, count, &r.error);
    return r;
}

static inline pc_result pc_source_error(uintptr_t source, uint64_t subscription, const char *message, size_t len,
                                        int32_t token_invalid) {
    pc_result r = {0};
    r.code = proxycfg_source_error((proxycfg_source *)source, subscription, pc_str(message, len), token_invalid, &r.error);
    return r;
}

static inline void pc_source_free(uintptr_t source) { proxycfg_source_free((proxycfg_source *)source); }

static inline pc_result pc_engine_new(const char *datacenter, size_t datacenter_len, int32_t intention_default,
                                      uint32_t workers, uint32_t callback_threads, uint32_t updates_per_second,
                                      uint64_t min_publish_interval_ms, uint64_t linger_ms, uintptr_t source,
                                      uint64_t source_kinds) {
    pc_result r = {0};
    proxycfg_engine *engine = NULL;
    proxycfg_engine_options options = {0};
    options.size = sizeof options;
    options.datacenter = pc_str(datacenter, datacenter_len);
    options.intention_default = intention_default;
    options.workers = workers;
    options.callback_threads = callback_threads;
    options.updates_per_second = updates_per_second;
    options.min_publish_interval_ms = min_publish_interval_ms;
    options.linger_ms = linger_ms;
    options.source = (proxycfg_source *)source;
    options.source_kinds = source_kinds;
    r.code = proxycfg_engine_new(&options, &engine, &r.error);
    r.handle = (uintptr_t)engine;
    return r;
}

static inline pc_result pc_engine_close(uintptr_t engine, uint64_t timeout_ms) {
    pc_result r = {0};
    size_t stuck = 0;
    r.code = proxycfg_engine_close((proxycfg_engine *)engine, timeout_ms, &stuck, &r.error);
    r.number = stuck;
    return r;
}

static inline void pc_engine_free(uintptr_t engine) { proxycfg_engine_free((proxycfg_engine *)engine); }

static inline pc_result pc_engine_apply(uintptr_t engine, const char *json, size_t len) {
    pc_result r = {0};
    r.code = proxycfg_engine_apply((proxycfg_engine *)engine, pc_str(json, len), &r.number, &r.error);
    return r;
}

static inline pc_result pc_engine_wait_index(uintptr_t engine, uint64_t index, uint64_t timeout_ms) {
    pc_result r = {0};
    r.code = proxycfg_engine_wait_index((proxycfg_engine *)engine, index, timeout_ms, &r.error);
    return r;
}

static inline pc_result pc_register(uintptr_t engine, const char *id, size_t id_len, const char *node, size_t node_len,
                                    const char *token, size_t token_len, const char *source, size_t source_len,
                                    const char *definition, size_t definition_len, int32_t kind, uint32_t flags) {
    pc_result r = {0};
    proxycfg_registered registered = PROXYCFG_REGISTERED_NOTHING;
    proxycfg_registration registration = {0};
    registration.size = sizeof registration;
    registration.id = pc_proxy_id(id, id_len, node, node_len, token, token_len);
    registration.source = pc_str(source, source_len);
    registration.definition = pc_str(definition, definition_len);
    registration.kind = kind;
    registration.flags = flags;
    r.code = proxycfg_register((proxycfg_engine *)engine, &registration, &registered, &r.error);
    r.number = (uint64_t)registered;
    return r;
}

static inline pc_result pc_deregister(uintptr_t engine, const char *id, size_t id_len, const char *node, size_t node_len,
                                      const char *token, size_t token_len, const char *source, size_t source_len) {
    pc_result r = {0};
    proxycfg_proxy_id proxy = pc_proxy_id(id, id_len, node, node_len, token, token_len);
    r.code = proxycfg_deregister((proxycfg_engine *)engine, &proxy, pc_str(source, source_len), &r.error);
    return r;
}

static inline pc_result pc_list(uintptr_t engine, const char *source, size_t source_len) {
    pc_result r = {0};
    r.code = proxycfg_list((proxycfg_engine *)engine, pc_str(source, source_len), &r.text, &r.error);
    return r;
}

static inline pc_result pc_status(uintptr_t engine, const char *id, size_t id_len, const char *node, size_t node_len,
                                  const char *token, size_t token_len) {
    pc_result r = {0};
    proxycfg_proxy_id proxy = pc_proxy_id(id, id_len, node, node_len, token, token_len);
    r.code = proxycfg_status((proxycfg_engine *)engine, &proxy, &r.text, &r.error);
    return r;
}

static inline pc_result pc_watch(uintptr_t engine, const char *id, size_t id_len, const char *node, size_t node_len,
                                 const char *token, size_t token_len, uintptr_t user_data) {
    pc_result r = {0};
    proxycfg_watch_handle *watch = NULL;
    proxycfg_proxy_id proxy = pc_proxy_id(id, id_len, node, node_len, token, token_len);
    r.code = proxycfg_watch((proxycfg_engine *)engine, &proxy, pc_on_snapshot, (void *)user_data, pc_on_freed, &watch,
                            &r.error);
    r.handle = (uintptr_t)watch;
    return r;
}

static inline void pc_watch_cancel(uintptr_t watch) { proxycfg_watch_cancel((proxycfg_watch_handle *)watch, NULL); }

static inline pc_result pc_queue_new(uintptr_t engine) {
    pc_result r = {0};
    proxycfg_queue *queue = NULL;
    r.code = proxycfg_queue_new((proxycfg_engine *)engine, &queue, &r.error);
    r.handle = (uintptr_t)queue;
    return r;
}

static inline pc_result pc_queue_watch(uintptr_t queue, const char *id, size_t id_len, const char *node, size_t node_len,
                                       const char *token, size_t token_len, uint64_t tag) {
    pc_result r = {0};
    proxycfg_watch_handle *watch = NULL;
    proxycfg_proxy_id proxy = pc_proxy_id(id, id_len, node, node_len, token, token_len);
    r.code = proxycfg_queue_watch((proxycfg_queue *)queue, &proxy, tag, &watch, &r.error);
    r.handle = (uintptr_t)watch;
    return r;
}

// `deliveries` is C memory.
static inline pc_result pc_queue_poll(uintptr_t queue, proxycfg_delivery *deliveries, size_t capacity, uint64_t timeout_ms) {
    pc_result r = {0};
    size_t count = 0;
    r.code = proxycfg_queue_poll((proxycfg_queue *)queue, deliveries, capacity, timeout_ms, &count, NULL);
    r.number = count;
    return r;
}

static inline pc_result pc_queue_fd(uintptr_t queue) {
    pc_result r = {0};
    int32_t fd = -1;
    r.code = proxycfg_queue_fd((proxycfg_queue *)queue, &fd, &r.error);
    r.number = (uint64_t)(uint32_t)fd;
    return r;
}

static inline void pc_queue_free(uintptr_t queue) { proxycfg_queue_free((proxycfg_queue *)queue); }

static inline void pc_release_all(const uintptr_t *snapshots, size_t count) {
    for (size_t i = 0; i < count; i++) proxycfg_snapshot_release((const proxycfg_snapshot *)snapshots[i]);
}

static inline void pc_snapshot_release(uintptr_t snapshot) { proxycfg_snapshot_release((const proxycfg_snapshot *)snapshot); }

static inline uint64_t pc_snapshot_index(uintptr_t snapshot) {
    return proxycfg_snapshot_index((const proxycfg_snapshot *)snapshot);
}

static inline int32_t pc_snapshot_kind(uintptr_t snapshot) {
    return (int32_t)proxycfg_snapshot_kind((const proxycfg_snapshot *)snapshot);
}

static inline proxycfg_proxy_id pc_snapshot_proxy_id(uintptr_t snapshot) {
    return proxycfg_snapshot_proxy_id((const proxycfg_snapshot *)snapshot);
}

static inline pc_result pc_snapshot_json(uintptr_t snapshot, const char *pointer, size_t len) {
    pc_result r = {0};
    proxycfg_str json = {NULL, 0};
    r.code = proxycfg_snapshot_json((const proxycfg_snapshot *)snapshot, pc_str(pointer, len), &json, &r.error);
    r.data = json.data;
    r.len = json.len;
    return r;
}

static inline pc_result pc_snapshot_diff(uintptr_t older, uintptr_t newer) {
    pc_result r = {0};
    r.code = proxycfg_snapshot_diff((const proxycfg_snapshot *)older, (const proxycfg_snapshot *)newer, &r.text, &r.error);
    return r;
}

static inline pc_result pc_snapshot_problems(uintptr_t snapshot) {
    pc_result r = {0};
    r.code = proxycfg_snapshot_problems((const proxycfg_snapshot *)snapshot, &r.text, &r.error);
    return r;
}

static inline pc_result pc_snapshot_resources(uintptr_t snapshot, const char *type_url, size_t len) {
    pc_result r = {0};
    const proxycfg_resource *resources = NULL;
    r.code = proxycfg_snapshot_resources((const proxycfg_snapshot *)snapshot, pc_str(type_url, len), &resources, &r.len, &r.error);
    r.data = resources;
    return r;
}

// A handler of 0 ends the log.
static inline pc_result pc_log_set(uintptr_t user_data, int32_t level) {
    pc_result r = {0};
    if (user_data == 0) {
        r.code = proxycfg_log_set(NULL, NULL, NULL, 0, &r.error);
    } else {
        r.code = proxycfg_log_set(pc_on_log, (void *)user_data, pc_on_freed, level, &r.error);
    }
    return r;
}

#endif
