// Random sequences of calls, also with handles that are stale or of another type, and from within callbacks. The bytes of
// an input choose the calls and their arguments, so that a fuzzer can drive it (see fuzz/); as a program it makes inputs
// itself: random [SEEDS [FIRST]].
#include "check.h"

#include <stdatomic.h>
#include <sched.h>

enum { ENGINES = 3, WATCHES = 12, QUEUES = 4, SOURCES = 3, SNAPSHOTS = 8 };

// Handles of any age, as numbers: also used by callbacks on other threads.
static atomic_uintptr_t engines[ENGINES], watches[WATCHES], queues[QUEUES], sources[SOURCES];
// Snapshots are owned: these are live or NULL. One that was released is kept in mind.
static const proxycfg_snapshot *snapshots[SNAPSHOTS], *released;
static atomic_long datas, ends;
static atomic_ulong last_subscription;

typedef struct input {
    const uint8_t *data;
    size_t size;
} input;

static unsigned byte(input *in) {
    if (in->size == 0) return 0;
    in->size--;
    return *in->data++;
}

static void *any_of(atomic_uintptr_t *handles, size_t count, input *in) {
    unsigned n = byte(in);
    // Now and then one of another type, or none.
    if (n >= 250) return NULL;
    if (n >= 245) return (void *)atomic_load(&watches[n % WATCHES]);
    if (n >= 240) return (void *)atomic_load(&engines[n % ENGINES]);
    return (void *)atomic_load(&handles[n % count]);
}

#define ENGINE(in) ((proxycfg_engine *)any_of(engines, ENGINES, in))
#define WATCH(in) ((proxycfg_watch_handle *)any_of(watches, WATCHES, in))
#define QUEUE(in) ((proxycfg_queue *)any_of(queues, QUEUES, in))
#define SOURCE(in) ((proxycfg_source *)any_of(sources, SOURCES, in))

static proxycfg_str any_text(input *in) {
    static const char *texts[] = {
        "",
        "p0",
        "p1",
        "n",
        "host",
        "dc1",
        "\xff\xfe",
        "{}",
        "[]",
        "null",
        "{\"Ops\": []}",
        "{\"Ops\": [{\"Register\": {\"Node\": \"n\", \"Address\": \"10.0.0.1\", \"Service\": {\"Kind\": \"connect-proxy\", "
        "\"Service\": \"db-proxy\", \"Port\": 1, \"Proxy\": {\"DestinationServiceName\": \"db\"}}}}]}",
        "{\"Ops\": [{\"Deregister\": {\"Node\": \"n\"}}]}",
        "{\"Ops\": [{\"Config\": {\"Kind\": \"service-resolver\", \"Name\": \"db\", \"Redirect\": {\"Service\": \"x\"}}}]}",
        "{\"Ops\": [{\"DeleteConfig\": {\"Kind\": \"service-resolver\", \"Name\": \"db\"}}]}",
        "{\"Kind\": \"connect-proxy\", \"Service\": \"p0\", \"Port\": 2, \"Proxy\": {\"DestinationServiceName\": \"web\", "
        "\"Upstreams\": [{\"DestinationName\": \"db\", \"LocalBindPort\": 9191}]}}",
        "{\"Kind\": \"mesh-gateway\", \"Service\": \"p1\", \"Port\": 2}",
        "[{\"Node\": \"x\", \"ServiceID\": \"db\", \"Address\": \"10.1.1.1\", \"Port\": 1}]",
        "/ConnectProxy/Upstreams/db/Endpoints",
        "/Roots/Roots/0",
        "/",
        "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
    };
    unsigned n = byte(in);
    if (n < 200) return text(texts[n % (sizeof texts / sizeof *texts)]);
    if (n < 210) return (proxycfg_str){NULL, 0};
    if (n < 215) return (proxycfg_str){NULL, 5};
    // A piece of the input itself.
    size_t len = n % 32 < in->size ? n % 32 : in->size;
    proxycfg_str piece = {(const char *)in->data, len};
    in->data += len;
    in->size -= len;
    return piece;
}

static proxycfg_proxy_id any_proxy(input *in) {
    unsigned n = byte(in);
    proxycfg_proxy_id id = proxy(n % 2 ? "p0" : "p1");
    if (n >= 240) id.id = any_text(in);
    if (n >= 245) id.token = any_text(in);
    return id;
}

// A call from a thread of the library.
static void nested(unsigned n) {
    uint8_t bytes[4] = {(uint8_t)(n * 31), (uint8_t)(n * 17), (uint8_t)(n * 7), (uint8_t)n};
    input in = {bytes, sizeof bytes};
    proxycfg_proxy_id id = proxy(n % 2 ? "p0" : "p1");
    proxycfg_text *list = NULL;
    switch (n % 8) {
    case 0:
        proxycfg_watch_cancel(WATCH(&in), NULL);
        break;
    case 1:
        proxycfg_status(ENGINE(&in), &id, &list, NULL);
        break;
    case 2:
        proxycfg_engine_apply(ENGINE(&in), text("{\"Ops\": []}"), NULL, NULL);
        break;
    case 3:
        proxycfg_deregister(ENGINE(&in), &id, text(""), NULL);
        break;
    case 4:
        proxycfg_engine_wait_index(ENGINE(&in), n, 1000, NULL);
        break;
    case 5:
        if (n % 64 == 5) proxycfg_engine_free(ENGINE(&in));
        break;
    case 6:
        if (n % 32 == 6) proxycfg_queue_free(QUEUE(&in));
        break;
    default:
        break;
    }
    proxycfg_text_free(list);
}

typedef struct data {
    atomic_uint calls;
    atomic_int over;
    unsigned seed;
} data;

static data *new_data(input *in) {
    data *made = calloc(1, sizeof *made);
    made->seed = byte(in);
    atomic_fetch_add(&datas, 1);
    return made;
}

static void unused(data *d) {
    free(d);
    atomic_fetch_sub(&datas, 1);
}

static void on_snapshot(void *user_data, const proxycfg_snapshot *snapshot) {
    data *me = user_data;
    CHECK(atomic_load(&me->over) == 0);
    (void)proxycfg_snapshot_index(snapshot);
    nested(me->seed + atomic_fetch_add(&me->calls, 1));
    CHECK(atomic_load(&me->over) == 0);
}

static void on_end(void *user_data) {
    data *me = user_data;
    CHECK(atomic_exchange(&me->over, 1) == 0);
    free(me);
    atomic_fetch_add(&ends, 1);
}

static void on_query(void *user_data, const proxycfg_query *query) {
    data *me = user_data;
    CHECK(atomic_load(&me->over) == 0);
    atomic_store(&last_subscription, query->subscription);
    if (me->seed % 2) {
        uint8_t at = (uint8_t)me->seed;
        input in = {&at, 1};
        proxycfg_source_answer(SOURCE(&in), query->subscription, text("[]"), NULL);
    }
    nested(me->seed + atomic_fetch_add(&me->calls, 1));
}

static void on_unsubscribe(void *user_data, uint64_t subscription) {
    data *me = user_data;
    CHECK(atomic_load(&me->over) == 0 && subscription > 0);
}

// A reference of its own, since what it is taken from may be released meanwhile; or what is none.
static const proxycfg_snapshot *any_snapshot(input *in) {
    unsigned n = byte(in);
    if (n >= 250) return (const proxycfg_snapshot *)atomic_load(&queues[n % QUEUES]);
    if (n >= 240 && proxycfg_snapshot_index(released) == 0) return released;
    return proxycfg_snapshot_retain(snapshots[n % SNAPSHOTS]);
}

static void keep(const proxycfg_snapshot *snapshot, input *in) {
    const proxycfg_snapshot **place = &snapshots[byte(in) % SNAPSHOTS];
    if (*place != NULL) released = *place;
    proxycfg_snapshot_release(*place);
    *place = snapshot;
}

static void one_call(input *in) {
    proxycfg_error *error = NULL;
    proxycfg_result result = PROXYCFG_RESULT_OK;
    proxycfg_text *made = NULL;
    const proxycfg_snapshot *snapshot = any_snapshot(in);
    proxycfg_proxy_id id = any_proxy(in);
    switch (byte(in) % 24) {
    case 0: {
        proxycfg_engine_options options;
        memset(&options, 0, sizeof options);
        options.size = byte(in) < 240 ? sizeof options : byte(in);
        options.workers = 1 + byte(in) % 2;
        options.callback_threads = 1 + byte(in) % 4;
        options.linger_ms = byte(in);
        options.intention_default = byte(in) < 250 ? 0 : (int32_t)byte(in);
        if (byte(in) % 2) {
            options.source = SOURCE(in);
            options.source_kinds = byte(in) | (uint64_t)(byte(in) % 2) << 8;
        }
        proxycfg_engine *engine;
        result = proxycfg_engine_new(&options, &engine, &error);
        unsigned place = byte(in) % ENGINES;
        if (result == PROXYCFG_RESULT_OK) proxycfg_engine_free((proxycfg_engine *)atomic_exchange(&engines[place], (uintptr_t)engine));
        break;
    }
    case 1:
        if (byte(in) < 40) proxycfg_engine_free(ENGINE(in));
        break;
    case 2:
        if (byte(in) < 40) result = proxycfg_engine_close(ENGINE(in), byte(in) % 4 * 1000, NULL, &error);
        break;
    case 3:
    case 4:
    case 5:
        result = proxycfg_engine_apply(ENGINE(in), any_text(in), NULL, &error);
        break;
    case 6:
    case 7: {
        proxycfg_registration registration;
        memset(&registration, 0, sizeof registration);
        registration.size = sizeof registration;
        registration.id = id;
        registration.definition = byte(in) % 4 ? text("{\"Kind\": \"connect-proxy\", \"Service\": \"w\", \"Port\": 2, \"Proxy\": "
                                                      "{\"DestinationServiceName\": \"web\", \"Upstreams\": "
                                                      "[{\"DestinationName\": \"db\", \"LocalBindPort\": 9191}]}}")
                                               : any_text(in);
        registration.kind = byte(in) % 8 ? 0 : (int32_t)byte(in) % 8;
        registration.flags = byte(in) % 2;
        proxycfg_registered registered;
        result = proxycfg_register(ENGINE(in), &registration, &registered, &error);
        CHECK((registered == PROXYCFG_REGISTERED_NOTHING) == (result != PROXYCFG_RESULT_OK));
        break;
    }
    case 8:
        result = proxycfg_deregister(ENGINE(in), &id, any_text(in), &error);
        break;
    case 9:
        result = proxycfg_list(ENGINE(in), any_text(in), &made, &error);
        break;
    case 10:
        result = proxycfg_status(ENGINE(in), &id, &made, &error);
        break;
    case 11:
    case 12: {
        const proxycfg_snapshot *ready;
        result = proxycfg_engine_wait_ready(ENGINE(in), &id, byte(in) % 4, &ready, &error);
        CHECK((ready != NULL) == (result == PROXYCFG_RESULT_OK));
        if (ready != NULL) keep(ready, in);
        break;
    }
    case 13:
    case 14: {
        data *mine = new_data(in);
        proxycfg_watch_handle *watch;
        result = proxycfg_watch(ENGINE(in), &id, byte(in) < 250 ? on_snapshot : NULL, mine, on_end, &watch, &error);
        if (result != PROXYCFG_RESULT_OK) {
            unused(mine);
        } else {
            proxycfg_watch_cancel((proxycfg_watch_handle *)atomic_exchange(&watches[byte(in) % WATCHES], (uintptr_t)watch), NULL);
        }
        break;
    }
    case 15:
        result = proxycfg_watch_cancel(WATCH(in), &error);
        break;
    case 16: {
        proxycfg_queue *queue;
        result = proxycfg_queue_new(ENGINE(in), &queue, &error);
        if (result == PROXYCFG_RESULT_OK)
            proxycfg_queue_free((proxycfg_queue *)atomic_exchange(&queues[byte(in) % QUEUES], (uintptr_t)queue));
        break;
    }
    case 17: {
        proxycfg_watch_handle *watch;
        result = proxycfg_queue_watch(QUEUE(in), &id, byte(in), &watch, &error);
        if (result == PROXYCFG_RESULT_OK)
            proxycfg_watch_cancel((proxycfg_watch_handle *)atomic_exchange(&watches[byte(in) % WATCHES], (uintptr_t)watch), NULL);
        break;
    }
    case 18:
    case 19: {
        proxycfg_delivery got[4];
        size_t number = 9;
        result = proxycfg_queue_poll(QUEUE(in), got, byte(in) % 5, byte(in) % 4, &number, &error);
        CHECK(number <= 4 && (result == PROXYCFG_RESULT_OK || number == 0));
        for (size_t i = 0; i < number; i++) keep(got[i].snapshot, in);
        int32_t fd;
        proxycfg_queue_fd(QUEUE(in), &fd, NULL);
        break;
    }
    case 20: {
        proxycfg_str json;
        result = proxycfg_snapshot_json(snapshot, any_text(in), &json, &error);
        CHECK(json.len == 0 || json.data != NULL);
        break;
    }
    case 21:
        result = proxycfg_snapshot_diff(snapshot, snapshots[byte(in) % SNAPSHOTS], &made, &error);
        break;
    case 22: {
        const proxycfg_resource *resources;
        size_t number;
        result = proxycfg_snapshot_resources(snapshot, any_text(in), &resources, &number, &error);
        for (size_t i = 0; i < number; i++) CHECK(resources[i].version.len == 64);
        if (byte(in) % 4 == 0) keep(NULL, in);
        if (byte(in) % 4 == 0) keep(proxycfg_snapshot_retain(snapshot), in);
        break;
    }
    default: {
        uint64_t subscription = byte(in) % 2 ? atomic_load(&last_subscription) : byte(in);
        switch (byte(in) % 4) {
        case 0: {
            data *mine = new_data(in);
            proxycfg_source_functions functions;
            memset(&functions, 0, sizeof functions);
            functions.size = sizeof functions;
            functions.subscribe = on_query;
            functions.unsubscribe = on_unsubscribe;
            proxycfg_source *source;
            result = proxycfg_source_new(&functions, mine, on_end, &source, &error);
            CHECK(result == PROXYCFG_RESULT_OK);
            proxycfg_source_free((proxycfg_source *)atomic_exchange(&sources[byte(in) % SOURCES], (uintptr_t)source));
            break;
        }
        case 1:
            result = proxycfg_source_answer(SOURCE(in), subscription, any_text(in), &error);
            break;
        case 2: {
            proxycfg_answer answers[2] = {{subscription, any_text(in)}, {byte(in), any_text(in)}};
            result = proxycfg_source_answer_batch(SOURCE(in), answers, byte(in) % 3, &error);
            break;
        }
        default:
            result = proxycfg_source_error(SOURCE(in), subscription, any_text(in), (int32_t)byte(in) % 2, &error);
        }
    }
    }
    CHECK(result >= PROXYCFG_RESULT_OK && result <= PROXYCFG_RESULT_SYSTEM && result != PROXYCFG_RESULT_PANIC);
    CHECK((result == PROXYCFG_RESULT_OK) == (error == NULL));
    CHECK(result == PROXYCFG_RESULT_OK || made == NULL);
    CHECK(result == PROXYCFG_RESULT_OK || proxycfg_error_message(error).len > 0);
    proxycfg_error_free(error);
    proxycfg_text_free(made);
    proxycfg_snapshot_release(snapshot);
}

int random_calls(const uint8_t *bytes, size_t size) {
    input in = {bytes, size};
    // Something to work with.
    proxycfg_engine *first = new_engine();
    atomic_store(&engines[0], (uintptr_t)first);
    add_proxy(first, "p0");
    while (in.size > 0) one_call(&in);
    for (int i = 0; i < SNAPSHOTS; i++) {
        proxycfg_snapshot_release(snapshots[i]);
        snapshots[i] = NULL;
    }
    for (int i = 0; i < ENGINES; i++) proxycfg_engine_free((proxycfg_engine *)atomic_exchange(&engines[i], 0));
    for (int i = 0; i < SOURCES; i++) proxycfg_source_free((proxycfg_source *)atomic_exchange(&sources[i], 0));
    // An engine that was freed from within a callback ends on its own time.
    for (int tries = 0; atomic_load(&ends) < atomic_load(&datas); tries++) {
        CHECK(tries < 60000);
        struct timespec moment = {0, 1000000};
        nanosleep(&moment, NULL);
    }
    CHECK(atomic_load(&ends) == atomic_load(&datas));
    nothing_left();
    return 0;
}

#ifndef RANDOM_NO_MAIN
int main(int count, char **arguments) {
    unsigned long seeds = count > 1 ? strtoul(arguments[1], NULL, 10) : getenv("PROXYCFG_TEST_SMALL") ? 5 : 100;
    unsigned long first = count > 2 ? strtoul(arguments[2], NULL, 10) : 1;
    for (unsigned long seed = first; seed < first + seeds; seed++) {
        uint8_t bytes[2048];
        uint64_t random = seed * 0x9e3779b97f4a7c15u;
        for (size_t i = 0; i < sizeof bytes; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            bytes[i] = (uint8_t)(random >> 56);
        }
        if (getenv("PROXYCFG_TEST_SHOW") != NULL) fprintf(stderr, "seed %lu\n", seed);
        random_calls(bytes, sizeof bytes);
    }
    printf("%lu random sequences\n", seeds);
    return 0;
}
#endif
