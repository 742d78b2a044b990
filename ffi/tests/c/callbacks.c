// Watches with callbacks: what they are called with, re-entrance, ends from within, user data, many threads.
#include "check.h"

#include <stdatomic.h>
#include <sched.h>

static int small(void) { return getenv("PROXYCFG_TEST_SMALL") != NULL; }

static void ended(void *user_data) { count(user_data); }

// FC-092: each callback gets its own pointer, also when calls nest.
typedef struct owner {
    proxycfg_engine *other;
    const char *proxy;
    counter calls;
    counter ends;
    struct owner *self;
} owner;

static void owner_called(void *user_data, const proxycfg_snapshot *snapshot) {
    owner *me = user_data;
    CHECK(me->self == me);
    if (snapshot == NULL) return;
    proxycfg_str id = proxycfg_snapshot_proxy_id(snapshot).id;
    CHECK(id.len == strlen(me->proxy) && memcmp(id.data, me->proxy, id.len) == 0);
    // Into the other engine, and a read of this snapshot.
    proxycfg_text *list;
    OK(proxycfg_list(me->other, text(""), &list, &error));
    proxycfg_text_free(list);
    add_proxy(me->other, "nested");
    proxycfg_str json;
    OK(proxycfg_snapshot_json(snapshot, text("/ProxyID/ID"), &json, &error));
    CHECK(json.len == id.len + 2);
    count(&me->calls);
}

static void owner_ended(void *user_data) {
    owner *me = user_data;
    CHECK(me->self == me);
    count(&me->ends);
}

static void fc_092_user_data_is_not_mixed_up(void) {
    proxycfg_engine *engines[2] = {new_engine(), new_engine()};
    const char *names[2] = {"a", "b"};
    owner owners[4];
    proxycfg_watch_handle *watches[4];
    for (int i = 0; i < 4; i++) {
        owner made = {engines[1 - i / 2], names[i % 2], COUNTER, COUNTER, &owners[i]};
        owners[i] = made;
        proxycfg_proxy_id id = proxy(names[i % 2]);
        OK(proxycfg_watch(engines[i / 2], &id, owner_called, &owners[i], owner_ended, &watches[i], &error));
    }
    for (int i = 0; i < 4; i++) add_proxy(engines[i / 2], names[i % 2]);
    for (int i = 0; i < 4; i++) wait_for(&owners[i].calls, 1);
    for (int n = 1; n <= 5; n++) {
        for (int e = 0; e < 2; e++) change(engines[e], (unsigned)n);
        for (int i = 0; i < 4; i++) wait_for(&owners[i].calls, 1);
    }
    for (int i = 0; i < 4; i++) OK(proxycfg_watch_cancel(watches[i], &error));
    for (int i = 0; i < 4; i++) CHECK(counted(&owners[i].ends) == 1);
    proxycfg_engine_free(engines[0]);
    proxycfg_engine_free(engines[1]);
}

// Every function from within a callback; waits are refused, the watch ends itself.
typedef struct inside {
    proxycfg_engine *engine;
    proxycfg_watch_handle *watch;
    proxycfg_watch_handle *another;
    counter calls;
    counter ends;
    counter others;
} inside;

static void nothing(void *user_data, const proxycfg_snapshot *snapshot) {
    (void)user_data;
    (void)snapshot;
}

static void everything_inside(void *user_data, const proxycfg_snapshot *snapshot) {
    inside *me = user_data;
    if (snapshot == NULL) return;
    CHECK(me->watch != NULL);
    proxycfg_proxy_id id = proxy("p");
    ENDS(ENGINE_THREAD, proxycfg_engine_wait_index(me->engine, 1, 1000, &error));
    ENDS(ENGINE_THREAD, proxycfg_engine_wait_ready(me->engine, &id, 1000, NULL, &error));
    change(me->engine, 7);
    add_proxy(me->engine, "q");
    proxycfg_text *list;
    OK(proxycfg_status(me->engine, &id, &list, &error));
    proxycfg_text_free(list);
    OK(proxycfg_deregister(me->engine, &(proxycfg_proxy_id){text("q"), text("n"), {NULL, 0}}, text(""), &error));
    // Another watch, begun and ended; and this one.
    OK(proxycfg_watch(me->engine, &id, nothing, &me->others, ended, &me->another, &error));
    OK(proxycfg_watch_cancel(me->another, &error));
    const proxycfg_snapshot *kept = proxycfg_snapshot_retain(snapshot);
    OK(proxycfg_watch_cancel(me->watch, &error));
    ENDS(INVALID_HANDLE, proxycfg_watch_cancel(me->watch, &error));
    // Its data is here until this call is over.
    CHECK(counted(&me->ends) == 0);
    CHECK(proxycfg_snapshot_index(kept) > 0);
    proxycfg_snapshot_release(kept);
    count(&me->calls);
}

static void all_functions_and_the_end_from_within_a_callback(void) {
    inside me = {new_engine(), NULL, NULL, COUNTER, COUNTER, COUNTER};
    inside *shared = &me;
    proxycfg_proxy_id id = proxy("p");
    add_proxy(me.engine, "p");
    OK(proxycfg_engine_wait_ready(me.engine, &id, 60000, NULL, &error));
    // The user data's end is counted in the struct itself, which outlives it.
    OK(proxycfg_watch(me.engine, &id, everything_inside, shared, NULL, &me.watch, &error));
    wait_for(&me.calls, 1);
    wait_for(&me.others, 1);
    settle(me.engine, change(me.engine, 8));
    CHECK(counted(&me.calls) == 1);
    proxycfg_engine_free(me.engine);
}

// Cancelling from within, with a destructor: it marks the end.
typedef struct ending {
    proxycfg_watch_handle *watch;
    proxycfg_engine *engine;
    int with_engine;
    counter *ends;
} ending;

static void end_itself(void *user_data, const proxycfg_snapshot *snapshot) {
    ending *me = user_data;
    if (snapshot == NULL) return;
    if (me->with_engine) {
        proxycfg_engine_free(me->engine);
    } else {
        OK(proxycfg_watch_cancel(me->watch, &error));
    }
    // Still there.
    CHECK(counted(me->ends) == 0);
}

static void freed(void *user_data) {
    ending *me = user_data;
    counter *ends = me->ends;
    free(me);
    count(ends);
}

static void cancel_and_free_from_within_a_callback(void) {
    for (int with_engine = 0; with_engine < 2; with_engine++) {
        counter ends = COUNTER;
        proxycfg_engine *engine = new_engine();
        proxycfg_proxy_id id = proxy("p");
        ending *me = malloc(sizeof *me);
        me->engine = engine;
        me->with_engine = with_engine;
        me->ends = &ends;
        OK(proxycfg_watch(engine, &id, end_itself, me, freed, &me->watch, &error));
        add_proxy(engine, "p");
        wait_for(&ends, 1);
        if (with_engine) {
            ENDS(INVALID_HANDLE, proxycfg_engine_apply(engine, text("{}"), NULL, &error));
        } else {
            proxycfg_engine_free(engine);
        }
    }
}

// FC-096: after cancel returns nothing is called, and the end comes once and last.
typedef struct context {
    atomic_int running;
    atomic_int over;
    counter *ends;
} context;

static void in_context(void *user_data, const proxycfg_snapshot *snapshot) {
    context *me = user_data;
    (void)snapshot;
    CHECK(atomic_load(&me->over) == 0);
    atomic_fetch_add(&me->running, 1);
    sched_yield();
    atomic_fetch_sub(&me->running, 1);
}

static void context_ended(void *user_data) {
    context *me = user_data;
    CHECK(atomic_load(&me->running) == 0);
    CHECK(atomic_exchange(&me->over, 1) == 0);
    count(me->ends);
}

static void fc_096_nothing_is_called_after_cancel(void) {
    long rounds = small() ? 200 : 10000;
    counter ends = COUNTER;
    proxycfg_engine *engine = new_engine();
    proxycfg_proxy_id id = proxy("p");
    add_proxy(engine, "p");
    OK(proxycfg_engine_wait_ready(engine, &id, 60000, NULL, &error));
    unsigned random = 1;
    for (long round = 0; round < rounds; round++) {
        context *me = calloc(1, sizeof *me);
        me->ends = &ends;
        proxycfg_watch_handle *watch;
        OK(proxycfg_watch(engine, &id, in_context, me, context_ended, &watch, &error));
        random = random * 1664525u + 1013904223u;
        if (random >> 31) change(engine, (unsigned)round);
        for (unsigned spin = 0; spin < (random >> 16) % 64; spin++) sched_yield();
        OK(proxycfg_watch_cancel(watch, &error));
        CHECK(counted(&ends) == round + 1);
        CHECK(atomic_load(&me->over) == 1);
        memset(me, 0xee, sizeof *me);
        free(me);
    }
    proxycfg_engine_free(engine);
}

// A slow callback gets the newest snapshot, and holds up nobody.
typedef struct slow {
    counter begun;
    counter go;
    atomic_ulong last;
    counter calls;
} slow;

static void slowly(void *user_data, const proxycfg_snapshot *snapshot) {
    slow *me = user_data;
    if (snapshot == NULL) return;
    count(&me->begun);
    wait_for(&me->go, 1);
    atomic_store(&me->last, proxycfg_snapshot_index(snapshot));
    count(&me->calls);
}

static void a_slow_callback_gets_the_newest(void) {
    slow me = {COUNTER, COUNTER, 0, COUNTER};
    proxycfg_engine *engine = new_engine();
    proxycfg_proxy_id id = proxy("p");
    proxycfg_watch_handle *watch;
    OK(proxycfg_watch(engine, &id, slowly, &me, NULL, &watch, &error));
    add_proxy(engine, "p");
    wait_for(&me.begun, 1);
    uint64_t index = 0;
    for (unsigned n = 1; n <= 100; n++) {
        index = change(engine, n);
        settle(engine, index);
    }
    count(&me.go);
    wait_for(&me.calls, 2);
    CHECK(atomic_load(&me.last) == index);
    CHECK(counted(&me.calls) == 2);
    OK(proxycfg_watch_cancel(watch, &error));
    proxycfg_engine_free(engine);
}

// FC-098: all operations on one engine from many threads.
typedef struct shared {
    proxycfg_engine *engine;
    unsigned seed;
    long rounds;
    // How long, instead of how many rounds; 0 if by rounds.
    double seconds;
} shared;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void *operate(void *argument) {
    shared *me = argument;
    unsigned random = me->seed;
    double end = now() + me->seconds;
    for (long round = 0; me->seconds > 0 ? now() < end : round < me->rounds; round++) {
        random = random * 1664525u + 1013904223u;
        char name[8];
        snprintf(name, sizeof name, "p%u", (random >> 8) % 4);
        proxycfg_proxy_id id = proxy(name);
        proxycfg_error *error = NULL;
        switch ((random >> 20) % 8) {
        case 0:
            add_proxy(me->engine, name);
            break;
        case 1: {
            proxycfg_result result = proxycfg_deregister(me->engine, &id, text(""), &error);
            CHECK(result == PROXYCFG_RESULT_OK || result == PROXYCFG_RESULT_NOT_FOUND);
            break;
        }
        case 2:
            change(me->engine, random >> 16);
            break;
        case 3: {
            proxycfg_text *list = NULL;
            proxycfg_result result = proxycfg_status(me->engine, &id, &list, &error);
            CHECK((result == PROXYCFG_RESULT_OK) == (list != NULL));
            proxycfg_text_free(list);
            break;
        }
        case 4: {
            const proxycfg_snapshot *snapshot = (const proxycfg_snapshot *)&id;
            proxycfg_result result = proxycfg_engine_wait_ready(me->engine, &id, 1, &snapshot, &error);
            CHECK((result == PROXYCFG_RESULT_OK) == (snapshot != NULL));
            if (snapshot != NULL) {
                proxycfg_str json;
                OK(proxycfg_snapshot_json(snapshot, text("/Roots"), &json, &error));
                const proxycfg_resource *resources;
                size_t number;
                OK(proxycfg_snapshot_resources(snapshot, text("type.googleapis.com/envoy.config.cluster.v3.Cluster"),
                                               &resources, &number, &error));
                CHECK(number > 0);
            }
            proxycfg_snapshot_release(snapshot);
            break;
        }
        case 5: {
            counter ends = COUNTER;
            proxycfg_watch_handle *watch;
            OK(proxycfg_watch(me->engine, &id, nothing, &ends, ended, &watch, &error));
            OK(proxycfg_watch_cancel(watch, &error));
            CHECK(counted(&ends) == 1);
            break;
        }
        default: {
            proxycfg_queue *queue;
            proxycfg_watch_handle *watch;
            proxycfg_delivery got[2];
            size_t number;
            OK(proxycfg_queue_new(me->engine, &queue, &error));
            OK(proxycfg_queue_watch(queue, &id, random, &watch, &error));
            OK(proxycfg_queue_poll(queue, got, 2, (random >> 30) & 1, &number, &error));
            for (size_t i = 0; i < number; i++) {
                CHECK(got[i].tag == random);
                proxycfg_snapshot_release(got[i].snapshot);
            }
            proxycfg_queue_free(queue);
            ENDS(INVALID_HANDLE, proxycfg_watch_cancel(watch, &error));
        }
        }
        proxycfg_error_free(error);
    }
    return NULL;
}

static void fc_098_one_engine_from_many_threads(void) {
    proxycfg_engine *engine = new_engine();
    enum { MOST = 64 };
    pthread_t running[MOST];
    shared each[MOST];
    // The long form is PROXYCFG_TEST_SECONDS=60.
    const char *given = getenv("PROXYCFG_TEST_SECONDS");
    double seconds = given == NULL ? 0 : strtod(given, NULL);
    int threads = seconds > 0 ? MOST : small() ? 4 : 16;
    for (int i = 0; i < threads; i++) {
        each[i] = (shared){engine, (unsigned)i * 7919u + 1u, small() ? 40 : 400, seconds};
        CHECK(pthread_create(&running[i], NULL, operate, &each[i]) == 0);
    }
    for (int i = 0; i < threads; i++) pthread_join(running[i], NULL);
    // It is as if they had come one at a time: what is done now is seen, and the whole of it.
    for (int i = 0; i < 4; i++) {
        char name[8];
        snprintf(name, sizeof name, "p%d", i);
        add_proxy(engine, name);
    }
    uint64_t index = change(engine, 1);
    index = change(engine, 2);
    settle(engine, index);
    for (int i = 0; i < 4; i++) {
        char name[8];
        snprintf(name, sizeof name, "p%d", i);
        proxycfg_proxy_id id = proxy(name);
        const proxycfg_snapshot *snapshot;
        OK(proxycfg_engine_wait_ready(engine, &id, 60000, &snapshot, &error));
        CHECK(proxycfg_snapshot_index(snapshot) == index);
        proxycfg_snapshot_release(snapshot);
    }
    CHECK(proxycfg_live_handles(PROXYCFG_HANDLE_KIND_WATCH) == 0 && proxycfg_live_handles(PROXYCFG_HANDLE_KIND_QUEUE) == 0);
    proxycfg_engine_free(engine);
}

// One thread frees what others use.
static void *use_until_freed(void *argument) {
    proxycfg_engine *engine = argument;
    for (;;) {
        proxycfg_text *list = NULL;
        proxycfg_result result = proxycfg_list(engine, text(""), &list, NULL);
        proxycfg_text_free(list);
        if (result == PROXYCFG_RESULT_INVALID_HANDLE) return NULL;
        CHECK(result == PROXYCFG_RESULT_OK);
    }
}

static void freed_by_one_thread_while_others_use_it(void) {
    for (int round = 0; round < (small() ? 2 : 20); round++) {
        proxycfg_engine *engine = new_engine();
        pthread_t users[4];
        for (int i = 0; i < 4; i++) CHECK(pthread_create(&users[i], NULL, use_until_freed, engine) == 0);
        add_proxy(engine, "p");
        proxycfg_engine_free(engine);
        for (int i = 0; i < 4; i++) pthread_join(users[i], NULL);
    }
}

int main(void) {
    RUN(fc_092_user_data_is_not_mixed_up);
    RUN(all_functions_and_the_end_from_within_a_callback);
    RUN(cancel_and_free_from_within_a_callback);
    RUN(fc_096_nothing_is_called_after_cancel);
    RUN(a_slow_callback_gets_the_newest);
    RUN(fc_098_one_engine_from_many_threads);
    RUN(freed_by_one_thread_while_others_use_it);
    nothing_left();
    return 0;
}
