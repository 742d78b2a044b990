// What a host may get wrong: NULL for every pointer, lengths of 0, texts that aren't UTF-8, structs of unknown sizes,
// unknown numbers, handles that are stale or of another type. All of it is an error with a message, never a crash.
#include "check.h"

#include <stddef.h>

static void noted(void *user_data, const proxycfg_snapshot *snapshot) {
    (void)snapshot;
    count(user_data);
}

static void unnoted(void *user_data, const proxycfg_snapshot *snapshot) {
    (void)user_data;
    (void)snapshot;
}

static void ended(void *user_data) { count(user_data); }

static void subscribed(void *user_data, const proxycfg_query *query) {
    (void)user_data;
    (void)query;
}

static void unsubscribed(void *user_data, uint64_t subscription) {
    (void)user_data;
    (void)subscription;
}

static void logged(void *user_data, int32_t level, proxycfg_str target, proxycfg_str message) {
    (void)user_data;
    (void)level;
    (void)target;
    (void)message;
}

static const proxycfg_str NOTHING = {NULL, 0};
static const proxycfg_str MISSING = {NULL, 3};

static proxycfg_source_functions functions(void) {
    proxycfg_source_functions made;
    memset(&made, 0, sizeof made);
    made.size = sizeof made;
    made.subscribe = subscribed;
    made.unsubscribe = unsubscribed;
    return made;
}

// FC-093: NULL in every place.
static void fc_093_null_pointers(void) {
    proxycfg_engine *engine = new_engine();
    proxycfg_proxy_id id = proxy("p");
    proxycfg_error **no_error = NULL;
    uint64_t index;
    size_t number;

    // Handles, and the places that there must be.
    ENDS(NULL_POINTER, proxycfg_engine_new(NULL, NULL, &error));
    ENDS(NULL_POINTER, proxycfg_engine_close(NULL, 0, &number, &error));
    ENDS(NULL_POINTER, proxycfg_engine_apply(NULL, text("{}"), &index, &error));
    ENDS(NULL_POINTER, proxycfg_engine_wait_index(NULL, 0, 0, &error));
    ENDS(NULL_POINTER, proxycfg_engine_wait_ready(NULL, &id, 0, NULL, &error));
    ENDS(NULL_POINTER, proxycfg_engine_wait_ready(engine, NULL, 0, NULL, &error));
    ENDS(NULL_POINTER, proxycfg_register(NULL, NULL, NULL, &error));
    ENDS(NULL_POINTER, proxycfg_register(engine, NULL, NULL, &error));
    ENDS(NULL_POINTER, proxycfg_deregister(NULL, &id, NOTHING, &error));
    ENDS(NULL_POINTER, proxycfg_deregister(engine, NULL, NOTHING, &error));
    proxycfg_text *list = (proxycfg_text *)&id;
    ENDS(NULL_POINTER, proxycfg_list(NULL, NOTHING, &list, &error));
    CHECK(list == NULL);
    ENDS(NULL_POINTER, proxycfg_list(engine, NOTHING, NULL, &error));
    ENDS(NULL_POINTER, proxycfg_status(NULL, &id, &list, &error));
    ENDS(NULL_POINTER, proxycfg_status(engine, NULL, &list, &error));
    ENDS(NULL_POINTER, proxycfg_status(engine, &id, NULL, &error));
    proxycfg_watch_handle *watch = (proxycfg_watch_handle *)&id;
    ENDS(NULL_POINTER, proxycfg_watch(NULL, &id, noted, NULL, NULL, &watch, &error));
    CHECK(watch == NULL);
    ENDS(NULL_POINTER, proxycfg_watch(engine, NULL, noted, NULL, NULL, &watch, &error));
    ENDS(NULL_POINTER, proxycfg_watch(engine, &id, NULL, NULL, NULL, &watch, &error));
    ENDS(NULL_POINTER, proxycfg_watch(engine, &id, noted, NULL, NULL, NULL, &error));
    ENDS(NULL_POINTER, proxycfg_watch_cancel(NULL, &error));
    proxycfg_queue *queue = NULL;
    ENDS(NULL_POINTER, proxycfg_queue_new(NULL, &queue, &error));
    ENDS(NULL_POINTER, proxycfg_queue_new(engine, NULL, &error));
    OK(proxycfg_queue_new(engine, &queue, &error));
    ENDS(NULL_POINTER, proxycfg_queue_watch(NULL, &id, 0, &watch, &error));
    ENDS(NULL_POINTER, proxycfg_queue_watch(queue, NULL, 0, &watch, &error));
    ENDS(NULL_POINTER, proxycfg_queue_watch(queue, &id, 0, NULL, &error));
    proxycfg_delivery delivery;
    ENDS(NULL_POINTER, proxycfg_queue_poll(NULL, &delivery, 1, 0, &number, &error));
    ENDS(NULL_POINTER, proxycfg_queue_poll(queue, NULL, 1, 0, &number, &error));
    ENDS(NULL_POINTER, proxycfg_queue_poll(queue, &delivery, 1, 0, NULL, &error));
    int32_t fd;
    ENDS(NULL_POINTER, proxycfg_queue_fd(NULL, &fd, &error));
    ENDS(NULL_POINTER, proxycfg_queue_fd(queue, NULL, &error));
    proxycfg_source *source = NULL;
    proxycfg_source_functions good = functions(), bad;
    ENDS(NULL_POINTER, proxycfg_source_new(NULL, NULL, NULL, &source, &error));
    ENDS(NULL_POINTER, proxycfg_source_new(&good, NULL, NULL, NULL, &error));
    bad = good;
    bad.subscribe = NULL;
    ENDS(NULL_POINTER, proxycfg_source_new(&bad, NULL, NULL, &source, &error));
    bad = good;
    bad.unsubscribe = NULL;
    ENDS(NULL_POINTER, proxycfg_source_new(&bad, NULL, NULL, &source, &error));
    ENDS(NULL_POINTER, proxycfg_source_answer(NULL, 1, text("[]"), &error));
    ENDS(NULL_POINTER, proxycfg_source_answer_batch(NULL, NULL, 0, &error));
    ENDS(NULL_POINTER, proxycfg_source_error(NULL, 1, text("x"), 0, &error));
    OK(proxycfg_source_new(&good, NULL, NULL, &source, &error));
    ENDS(NULL_POINTER, proxycfg_source_answer_batch(source, NULL, 1, &error));
    OK(proxycfg_source_answer_batch(source, NULL, 0, &error));
    proxycfg_source_free(source);

    // Snapshots.
    add_proxy(engine, "p");
    const proxycfg_snapshot *snapshot = NULL;
    OK(proxycfg_engine_wait_ready(engine, &id, 60000, &snapshot, &error));
    OK(proxycfg_engine_wait_ready(engine, &id, 60000, NULL, &error));
    proxycfg_str json;
    const proxycfg_resource *resources;
    proxycfg_str url = text("type.googleapis.com/envoy.config.cluster.v3.Cluster");
    ENDS(NULL_POINTER, proxycfg_snapshot_json(NULL, NOTHING, &json, &error));
    CHECK(json.len == 0);
    ENDS(NULL_POINTER, proxycfg_snapshot_json(snapshot, NOTHING, NULL, &error));
    ENDS(NULL_POINTER, proxycfg_snapshot_diff(NULL, snapshot, &list, &error));
    ENDS(NULL_POINTER, proxycfg_snapshot_diff(snapshot, NULL, &list, &error));
    ENDS(NULL_POINTER, proxycfg_snapshot_diff(snapshot, snapshot, NULL, &error));
    ENDS(NULL_POINTER, proxycfg_snapshot_resources(NULL, url, &resources, &number, &error));
    ENDS(NULL_POINTER, proxycfg_snapshot_resources(snapshot, url, NULL, &number, &error));
    CHECK(number == 0);
    ENDS(NULL_POINTER, proxycfg_snapshot_resources(snapshot, url, &resources, NULL, &error));
    CHECK(resources == NULL);
    ENDS(NULL_POINTER, proxycfg_snapshot_problems(NULL, &list, &error));
    ENDS(NULL_POINTER, proxycfg_snapshot_problems(snapshot, NULL, &error));
    CHECK(proxycfg_snapshot_retain(NULL) == NULL);
    CHECK(proxycfg_snapshot_index(NULL) == 0);
    CHECK(proxycfg_snapshot_kind(NULL) == PROXYCFG_PROXY_KIND_NONE);
    CHECK(proxycfg_snapshot_proxy_id(NULL).id.len == 0);
    proxycfg_snapshot_release(snapshot);
    proxycfg_snapshot_release(NULL);

    // Errors and texts; and no error wanted.
    CHECK(proxycfg_error_code(NULL) == PROXYCFG_RESULT_OK);
    CHECK(proxycfg_error_message(NULL).len == 0);
    CHECK(proxycfg_text_content(NULL).len == 0);
    proxycfg_error_free(NULL);
    proxycfg_text_free(NULL);
    proxycfg_engine_free(NULL);
    proxycfg_queue_free(NULL);
    proxycfg_source_free(NULL);
    CHECK(proxycfg_engine_apply(engine, text("{"), NULL, no_error) == PROXYCFG_RESULT_INVALID_ARGUMENT);
    CHECK(proxycfg_engine_apply(engine, text("{\"Ops\": []}"), NULL, no_error) == PROXYCFG_RESULT_OK);

    // Texts: a length without a pointer.
    ENDS(NULL_POINTER, proxycfg_engine_apply(engine, MISSING, &index, &error));
    ENDS(NULL_POINTER, proxycfg_deregister(engine, &id, MISSING, &error));
    ENDS(NULL_POINTER, proxycfg_list(engine, MISSING, &list, &error));
    proxycfg_proxy_id broken = id;
    broken.id = MISSING;
    ENDS(NULL_POINTER, proxycfg_status(engine, &broken, &list, &error));
    broken = id;
    broken.node = MISSING;
    ENDS(NULL_POINTER, proxycfg_status(engine, &broken, &list, &error));
    broken = id;
    broken.token = MISSING;
    ENDS(NULL_POINTER, proxycfg_status(engine, &broken, &list, &error));
    proxycfg_engine_free(engine);
}

static void lengths_of_zero(void) {
    proxycfg_engine *engine = new_engine();
    // A pointer with a length of 0 isn't followed.
    proxycfg_str empty = {(const char *)(size_t)8, 0};
    ENDS(INVALID_ARGUMENT, proxycfg_engine_apply(engine, empty, NULL, &error));
    proxycfg_proxy_id id = {empty, empty, empty};
    ENDS(INVALID_ARGUMENT, proxycfg_engine_wait_ready(engine, &id, 0, NULL, &error));
    proxycfg_text *list;
    OK(proxycfg_list(engine, empty, &list, &error));
    CHECK(proxycfg_text_content(list).len == 2);
    proxycfg_text_free(list);
    proxycfg_queue *queue;
    OK(proxycfg_queue_new(engine, &queue, &error));
    proxycfg_delivery delivery;
    size_t number = 7;
    ENDS(INVALID_ARGUMENT, proxycfg_queue_poll(queue, &delivery, 0, 0, &number, &error));
    CHECK(number == 0);
    OK(proxycfg_queue_poll(queue, &delivery, 1, 0, &number, &error));
    CHECK(number == 0);
    // Lengths that no object can have.
    proxycfg_str endless = {"x", SIZE_MAX};
    ENDS(INVALID_ARGUMENT, proxycfg_engine_apply(engine, endless, NULL, &error));
    ENDS(INVALID_ARGUMENT, proxycfg_queue_poll(queue, &delivery, SIZE_MAX / 2, 0, &number, &error));
    proxycfg_engine_free(engine);
}

static void texts_that_are_not_utf_8(void) {
    proxycfg_engine *engine = new_engine();
    proxycfg_str bad = {"a\xff", 2};
    proxycfg_proxy_id id = proxy("p"), broken = id;
    broken.id = bad;
    proxycfg_text *list;
    ENDS(INVALID_UTF8, proxycfg_engine_apply(engine, bad, NULL, &error));
    ENDS(INVALID_UTF8, proxycfg_status(engine, &broken, &list, &error));
    ENDS(INVALID_UTF8, proxycfg_list(engine, bad, &list, &error));
    ENDS(INVALID_UTF8, proxycfg_deregister(engine, &id, bad, &error));
    proxycfg_registration registration;
    memset(&registration, 0, sizeof registration);
    registration.size = sizeof registration;
    registration.definition = bad;
    ENDS(INVALID_UTF8, proxycfg_register(engine, &registration, NULL, &error));
    proxycfg_engine_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.datacenter = bad;
    proxycfg_engine *other;
    ENDS(INVALID_UTF8, proxycfg_engine_new(&options, &other, &error));
    CHECK(other == NULL);
    proxycfg_source_functions good = functions();
    proxycfg_source *source;
    OK(proxycfg_source_new(&good, NULL, NULL, &source, &error));
    ENDS(INVALID_UTF8, proxycfg_source_answer(source, 1, bad, &error));
    ENDS(INVALID_UTF8, proxycfg_source_error(source, 1, bad, 0, &error));
    proxycfg_answer answer = {1, bad};
    ENDS(INVALID_UTF8, proxycfg_source_answer_batch(source, &answer, 1, &error));
    proxycfg_source_free(source);
    add_proxy(engine, "p");
    const proxycfg_snapshot *snapshot;
    OK(proxycfg_engine_wait_ready(engine, &id, 60000, &snapshot, &error));
    proxycfg_str json;
    const proxycfg_resource *resources;
    size_t number;
    ENDS(INVALID_UTF8, proxycfg_snapshot_json(snapshot, bad, &json, &error));
    ENDS(INVALID_UTF8, proxycfg_snapshot_resources(snapshot, bad, &resources, &number, &error));
    proxycfg_snapshot_release(snapshot);
    proxycfg_engine_free(engine);
}

static void structs_of_other_sizes(void) {
    // A later version's struct: longer.
    struct {
        proxycfg_engine_options known;
        uint64_t more[4];
    } longer;
    memset(&longer, 0, sizeof longer);
    proxycfg_engine *engine;
    size_t wrong[] = {0, 1, sizeof(size_t), sizeof(proxycfg_engine_options) - 1, 4097, SIZE_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        longer.known.size = wrong[i];
        ENDS(INVALID_ARGUMENT, proxycfg_engine_new(&longer.known, &engine, &error));
        CHECK(engine == NULL);
    }
    // What it doesn't use is zero: fine. What it uses isn't known here: told.
    longer.known.size = sizeof longer;
    OK(proxycfg_engine_new(&longer.known, &engine, &error));
    longer.more[3] = 1;
    proxycfg_engine *other;
    ENDS(INVALID_ARGUMENT, proxycfg_engine_new(&longer.known, &other, &error));

    proxycfg_registration registration;
    memset(&registration, 0, sizeof registration);
    ENDS(INVALID_ARGUMENT, proxycfg_register(engine, &registration, NULL, &error));
    registration.size = sizeof registration - 8;
    ENDS(INVALID_ARGUMENT, proxycfg_register(engine, &registration, NULL, &error));
    proxycfg_source_functions table = functions();
    proxycfg_source *source;
    table.size = 8;
    ENDS(INVALID_ARGUMENT, proxycfg_source_new(&table, NULL, NULL, &source, &error));
    proxycfg_engine_free(engine);
}

static void unknown_numbers(void) {
    proxycfg_engine_options options;
    proxycfg_engine *engine;
    int32_t unknown[] = {-1, 2, 99, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        memset(&options, 0, sizeof options);
        options.size = sizeof options;
        options.intention_default = unknown[i];
        ENDS(INVALID_ARGUMENT, proxycfg_engine_new(&options, &engine, &error));
    }
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.workers = 1000000;
    ENDS(INVALID_ARGUMENT, proxycfg_engine_new(&options, &engine, &error));
    options.workers = 0;
    options.source_kinds = 1;
    ENDS(INVALID_ARGUMENT, proxycfg_engine_new(&options, &engine, &error));
    proxycfg_source_functions table = functions();
    proxycfg_source *source;
    OK(proxycfg_source_new(&table, NULL, NULL, &source, &error));
    options.source = source;
    options.source_kinds = 0;
    ENDS(INVALID_ARGUMENT, proxycfg_engine_new(&options, &engine, &error));
    options.source_kinds = (uint64_t)1 << 63;
    ENDS(INVALID_ARGUMENT, proxycfg_engine_new(&options, &engine, &error));
    options.source_kinds = (uint64_t)1 << PROXYCFG_QUERY_KIND_ENDPOINTS;
    OK(proxycfg_engine_new(&options, &engine, &error));
    proxycfg_engine *other;
    ENDS(INVALID_ARGUMENT, proxycfg_engine_new(&options, &other, &error));
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.datacenter = text("No Such");
    ENDS(INVALID_ARGUMENT, proxycfg_engine_new(&options, &other, &error));

    proxycfg_registration registration;
    memset(&registration, 0, sizeof registration);
    registration.size = sizeof registration;
    registration.id = proxy("p");
    ENDS(INVALID_ARGUMENT, proxycfg_register(engine, &registration, NULL, &error));
    registration.kind = 77;
    ENDS(INVALID_ARGUMENT, proxycfg_register(engine, &registration, NULL, &error));
    registration.kind = PROXYCFG_PROXY_KIND_CONNECT_PROXY;
    registration.flags = 0x80;
    ENDS(INVALID_ARGUMENT, proxycfg_register(engine, &registration, NULL, &error));
    registration.flags = 0;
    OK(proxycfg_register(engine, &registration, NULL, &error));
    registration.definition = text("{\"Service\": \"web\"}");
    registration.kind = 0;
    ENDS(REFUSED, proxycfg_register(engine, &registration, NULL, &error));
    registration.definition = text("{\"Servce\": \"web\"}");
    ENDS(REFUSED, proxycfg_register(engine, &registration, NULL, &error));
    registration.definition = text("{");
    ENDS(INVALID_ARGUMENT, proxycfg_register(engine, &registration, NULL, &error));

    ENDS(INVALID_ARGUMENT, proxycfg_log_set(logged, NULL, NULL, 0, &error));
    ENDS(INVALID_ARGUMENT, proxycfg_log_set(logged, NULL, NULL, 6, &error));
    ENDS(NOT_FOUND, proxycfg_source_answer(source, 999, text("[]"), &error));
    ENDS(NOT_FOUND, proxycfg_source_error(source, 999, text("x"), 0, &error));

    add_proxy(engine, "q");
    const proxycfg_snapshot *snapshot;
    ENDS(TIMED_OUT, proxycfg_engine_wait_ready(engine, &registration.id, 1, &snapshot, &error));
    CHECK(snapshot == NULL);
    proxycfg_engine_free(engine);
    proxycfg_source_free(source);
}

static void pointers_into_json_and_types(void) {
    proxycfg_engine *engine = new_engine();
    add_proxy(engine, "p");
    proxycfg_proxy_id id = proxy("p");
    const proxycfg_snapshot *snapshot;
    OK(proxycfg_engine_wait_ready(engine, &id, 60000, &snapshot, &error));
    proxycfg_str json;
    OK(proxycfg_snapshot_json(snapshot, NOTHING, &json, &error));
    CHECK(json.len > 100 && json.data[0] == '{' && json.data[json.len - 1] == '}');
    OK(proxycfg_snapshot_json(snapshot, text("/ProxyID/NodeName"), &json, &error));
    CHECK(json.len == 3 && memcmp(json.data, "\"n\"", 3) == 0);
    ENDS(NOT_FOUND, proxycfg_snapshot_json(snapshot, text("/Nothing"), &json, &error));
    CHECK(json.len == 0);
    ENDS(INVALID_ARGUMENT, proxycfg_snapshot_json(snapshot, text("Roots"), &json, &error));
    const proxycfg_resource *resources;
    size_t number;
    ENDS(INVALID_ARGUMENT, proxycfg_snapshot_resources(snapshot, text("cluster"), &resources, &number, &error));
    OK(proxycfg_snapshot_resources(snapshot, text("type.googleapis.com/envoy.config.listener.v3.Listener"), &resources,
                                   &number, &error));
    CHECK(number == 2 && resources[0].bytes.len > 0 && resources[0].version.len == 64);
    CHECK(proxycfg_snapshot_kind(snapshot) == PROXYCFG_PROXY_KIND_CONNECT_PROXY);
    proxycfg_text *problems;
    OK(proxycfg_snapshot_problems(snapshot, &problems, &error));
    proxycfg_text_free(problems);
    // A snapshot outlives its engine.
    proxycfg_engine_free(engine);
    CHECK(proxycfg_snapshot_index(snapshot) > 0);
    OK(proxycfg_snapshot_json(snapshot, text("/Roots/TrustDomain"), &json, &error));
    CHECK(json.len > 2);
    proxycfg_str name = proxycfg_snapshot_proxy_id(snapshot).id;
    CHECK(name.len == 1 && name.data[0] == 'p');
    proxycfg_snapshot_release(proxycfg_snapshot_retain(snapshot));
    proxycfg_snapshot_release(snapshot);
}

// FC-094: freed twice, used after, of another type.
static void fc_094_stale_handles(void) {
    counter calls = COUNTER, ends = COUNTER;
    proxycfg_engine *engine = new_engine();
    proxycfg_proxy_id id = proxy("p");
    proxycfg_watch_handle *watch, *second;
    proxycfg_queue *queue;
    OK(proxycfg_watch(engine, &id, noted, &calls, NULL, &watch, &error));
    OK(proxycfg_watch(engine, &id, unnoted, &ends, ended, &second, &error));
    OK(proxycfg_queue_new(engine, &queue, &error));
    OK(proxycfg_watch_cancel(watch, &error));
    ENDS(INVALID_HANDLE, proxycfg_watch_cancel(watch, &error));
    // Of another type.
    ENDS(INVALID_HANDLE, proxycfg_watch_cancel((proxycfg_watch_handle *)queue, &error));
    ENDS(INVALID_HANDLE, proxycfg_watch_cancel((proxycfg_watch_handle *)engine, &error));
    ENDS(INVALID_HANDLE, proxycfg_engine_apply((proxycfg_engine *)queue, text("{}"), NULL, &error));
    ENDS(INVALID_HANDLE, proxycfg_queue_fd((proxycfg_queue *)engine, &(int32_t){0}, &error));
    ENDS(INVALID_HANDLE, proxycfg_source_answer((proxycfg_source *)engine, 1, text("1"), &error));
    proxycfg_queue_free((proxycfg_queue *)engine);
    proxycfg_source_free((proxycfg_source *)engine);
    proxycfg_engine_free((proxycfg_engine *)queue);
    // Of no type at all.
    char any[64];
    ENDS(INVALID_HANDLE, proxycfg_engine_wait_index((proxycfg_engine *)(void *)any, 0, 0, &error));
    size_t stuck = 9;
    OK(proxycfg_engine_close(engine, 10000, &stuck, &error));
    CHECK(stuck == 0);
    OK(proxycfg_engine_close(engine, 10000, NULL, &error));
    // Closed, but not freed.
    proxycfg_text *list;
    ENDS(CLOSED, proxycfg_engine_apply(engine, text("{\"Ops\": []}"), NULL, &error));
    ENDS(CLOSED, proxycfg_watch(engine, &id, noted, &calls, ended, &watch, &error));
    ENDS(CLOSED, proxycfg_engine_wait_index(engine, 1000000, 10, &error));
    OK(proxycfg_list(engine, NOTHING, &list, &error));
    proxycfg_text_free(list);
    proxycfg_queue_free(queue);
    proxycfg_queue_free(queue);
    CHECK(counted(&ends) == 0);
    proxycfg_engine_free(engine);
    CHECK(counted(&ends) == 1);
    proxycfg_engine_free(engine);
    ENDS(INVALID_HANDLE, proxycfg_engine_close(engine, 0, NULL, &error));
    ENDS(INVALID_HANDLE, proxycfg_engine_apply(engine, text("{}"), NULL, &error));
    ENDS(INVALID_HANDLE, proxycfg_watch_cancel(second, &error));
    ENDS(INVALID_HANDLE, proxycfg_queue_new(engine, &queue, &error));
    CHECK(counted(&ends) == 1 && counted(&calls) == 0);
}

// Snapshots, errors and texts: released too often, used after, of another type.
static void fc_094_stale_snapshots_errors_and_texts(void) {
    proxycfg_engine *engine = new_engine();
    add_proxy(engine, "p");
    proxycfg_proxy_id id = proxy("p");
    const proxycfg_snapshot *snapshot, *again;
    OK(proxycfg_engine_wait_ready(engine, &id, 60000, &snapshot, &error));
    OK(proxycfg_engine_wait_ready(engine, &id, 60000, &again, &error));
    // One object for one snapshot, with a reference for each who got it.
    CHECK(snapshot == again && proxycfg_live_handles(PROXYCFG_HANDLE_KIND_SNAPSHOT) == 1);
    CHECK(proxycfg_snapshot_retain(snapshot) == snapshot);
    for (int i = 0; i < 3; i++) {
        CHECK(proxycfg_snapshot_index(snapshot) > 0);
        proxycfg_snapshot_release(snapshot);
    }
    proxycfg_str json;
    const proxycfg_resource *resources;
    size_t number;
    proxycfg_text *text_, *other;
    proxycfg_queue *queue;
    OK(proxycfg_queue_new(engine, &queue, &error));
    OK(proxycfg_list(engine, NOTHING, &other, &error));
    const proxycfg_snapshot *stale[] = {snapshot, (proxycfg_snapshot *)queue, (proxycfg_snapshot *)engine,
                                        (proxycfg_snapshot *)other, (proxycfg_snapshot *)(void *)&id};
    for (size_t i = 0; i < sizeof stale / sizeof *stale; i++) {
        proxycfg_snapshot_release(stale[i]);
        CHECK(proxycfg_snapshot_retain(stale[i]) == NULL);
        CHECK(proxycfg_snapshot_index(stale[i]) == 0);
        CHECK(proxycfg_snapshot_kind(stale[i]) == PROXYCFG_PROXY_KIND_NONE);
        CHECK(proxycfg_snapshot_proxy_id(stale[i]).id.len == 0);
        ENDS(INVALID_HANDLE, proxycfg_snapshot_json(stale[i], NOTHING, &json, &error));
        ENDS(INVALID_HANDLE, proxycfg_snapshot_json(stale[i], text("/Roots"), &json, &error));
        ENDS(INVALID_HANDLE, proxycfg_snapshot_diff(stale[i], stale[i], &text_, &error));
        ENDS(INVALID_HANDLE, proxycfg_snapshot_problems(stale[i], &text_, &error));
        ENDS(INVALID_HANDLE,
             proxycfg_snapshot_resources(stale[i], text("type.googleapis.com/envoy.config.cluster.v3.Cluster"), &resources,
                                         &number, &error));
        CHECK(json.len == 0 && text_ == NULL && resources == NULL && number == 0);
    }
    // What took the place of the one that was released has another handle.
    OK(proxycfg_engine_wait_ready(engine, &id, 60000, &again, &error));
    CHECK(again != snapshot && proxycfg_snapshot_index(snapshot) == 0 && proxycfg_snapshot_index(again) > 0);
    proxycfg_snapshot_release(again);

    CHECK(proxycfg_text_content(other).len > 2);
    proxycfg_text_free(other);
    CHECK(proxycfg_text_content(other).len == 0);
    proxycfg_text_free(other);
    proxycfg_text_free((proxycfg_text *)queue);
    proxycfg_error *error = NULL;
    CHECK(proxycfg_watch_cancel(NULL, &error) == PROXYCFG_RESULT_NULL_POINTER);
    proxycfg_text_free((proxycfg_text *)error);
    CHECK(proxycfg_error_code(error) == PROXYCFG_RESULT_NULL_POINTER && proxycfg_error_message(error).len > 0);
    proxycfg_error_free(error);
    CHECK(proxycfg_error_code(error) == PROXYCFG_RESULT_OK && proxycfg_error_message(error).len == 0);
    proxycfg_error_free(error);
    proxycfg_error_free((proxycfg_error *)queue);
    CHECK(proxycfg_live_handles(0) == 0 && proxycfg_live_handles(-1) == 0 && proxycfg_live_handles(INT32_MAX) == 0);
    CHECK(proxycfg_live_handles(PROXYCFG_HANDLE_KIND_QUEUE) == 1);
    proxycfg_engine_free(engine);
}

static void records_with_mistakes_change_nothing(void) {
    proxycfg_engine *engine = new_engine();
    uint64_t before, after = 7;
    OK(proxycfg_engine_apply(engine, text("{\"Ops\": []}"), &before, &error));
    proxycfg_error *error = NULL;
    proxycfg_result result = proxycfg_engine_apply(
        engine,
        text("{\"Ops\": [{\"Config\": {\"Kind\": \"service-defaults\", \"Name\": \"ok\"}}, {\"Config\": {\"Kind\": "
             "\"service-defaults\", \"Name\": \"bad\", \"Protokol\": \"http\"}}, {\"Chek\": {}}]}"),
        &after, &error);
    CHECK(result == PROXYCFG_RESULT_REFUSED && after == 0);
    proxycfg_str message = proxycfg_error_message(error);
    char *told = calloc(message.len + 1, 1);
    memcpy(told, message.data, message.len);
    CHECK(strstr(told, "Ops[1].Config") != NULL && strstr(told, "did you mean Protocol?") != NULL);
    CHECK(strstr(told, "Ops[2]") != NULL);
    free(told);
    proxycfg_error_free(error);
    ENDS(REFUSED, proxycfg_engine_apply(engine, text("{\"Ops\": [{\"Register\": {\"Node\": \"n\", \"Address\": "
                                                     "\"1.2.3.4\", \"Datacenter\": \"elsewhere\"}}]}"),
                                        NULL, &error));
    OK(proxycfg_engine_apply(engine, text("{\"Ops\": []}"), &after, &error));
    CHECK(before == after);
    proxycfg_engine_free(engine);
}

int main(void) {
    RUN(fc_093_null_pointers);
    RUN(lengths_of_zero);
    RUN(texts_that_are_not_utf_8);
    RUN(structs_of_other_sizes);
    RUN(unknown_numbers);
    RUN(pointers_into_json_and_types);
    RUN(fc_094_stale_handles);
    RUN(fc_094_stale_snapshots_errors_and_texts);
    RUN(records_with_mistakes_change_nothing);
    nothing_left();
    return 0;
}
