// Sources of the host, and the log.
#include "check.h"

enum { MOST = 64 };

// A host that owns the endpoints: it notes who asks, and answers when told to.
typedef struct host {
    pthread_mutex_t lock;
    uint64_t live[MOST];
    char asked[MOST][256];
    int count;
    uint64_t gone;
    counter subscribed;
    counter unsubscribed;
    counter ends;
} host;

static void subscribe(void *user_data, const proxycfg_query *query) {
    host *me = user_data;
    CHECK(query->size >= sizeof(proxycfg_query));
    CHECK(query->kind == PROXYCFG_QUERY_KIND_ENDPOINTS || query->kind == PROXYCFG_QUERY_KIND_INTENTIONS);
    pthread_mutex_lock(&me->lock);
    CHECK(me->count < MOST);
    me->live[me->count] = query->subscription;
    snprintf(me->asked[me->count], sizeof *me->asked, "%.*s|%.*s", (int)query->json.len, query->json.data,
             (int)query->token.len, query->token.data);
    me->count++;
    pthread_mutex_unlock(&me->lock);
    count(&me->subscribed);
}

static void unsubscribe(void *user_data, uint64_t subscription) {
    host *me = user_data;
    pthread_mutex_lock(&me->lock);
    me->gone = subscription;
    pthread_mutex_unlock(&me->lock);
    count(&me->unsubscribed);
}

static void ended(void *user_data) { count(&((host *)user_data)->ends); }

// The subscription whose question contains a text.
static uint64_t asked(host *me, const char *part) {
    for (int tries = 0; tries < 6000; tries++) {
        pthread_mutex_lock(&me->lock);
        for (int i = 0; i < me->count; i++) {
            if (strstr(me->asked[i], part) != NULL) {
                uint64_t found = me->live[i];
                pthread_mutex_unlock(&me->lock);
                return found;
            }
        }
        pthread_mutex_unlock(&me->lock);
        struct timespec moment = {0, 10000000};
        nanosleep(&moment, NULL);
    }
    fprintf(stderr, "nobody asked for %s\n", part);
    abort();
}

static int holds(const proxycfg_snapshot *snapshot, const char *pointer, const char *part) {
    proxycfg_str json;
    proxycfg_result result = proxycfg_snapshot_json(snapshot, text(pointer), &json, NULL);
    if (result != PROXYCFG_RESULT_OK) return 0;
    char *copy = calloc(json.len + 1, 1);
    memcpy(copy, json.data, json.len);
    int found = strstr(copy, part) != NULL;
    free(copy);
    return found;
}

// The next snapshot in which a part of it holds a text.
static void until(proxycfg_queue *queue, const char *pointer, const char *part) {
    for (int tries = 0; tries < 100; tries++) {
        proxycfg_delivery got;
        size_t number;
        OK(proxycfg_queue_poll(queue, &got, 1, 60000, &number, &error));
        CHECK(number == 1 && got.snapshot != NULL);
        int found = holds(got.snapshot, pointer, part);
        proxycfg_snapshot_release(got.snapshot);
        if (found) return;
    }
    CHECK(!"it never came");
}

static void a_host_answers_some_queries_itself(void) {
    host me = {PTHREAD_MUTEX_INITIALIZER, {0}, {{0}}, 0, 0, COUNTER, COUNTER, COUNTER};
    proxycfg_source_functions table;
    memset(&table, 0, sizeof table);
    table.size = sizeof table;
    table.subscribe = subscribe;
    table.unsubscribe = unsubscribe;
    proxycfg_source *source;
    OK(proxycfg_source_new(&table, &me, ended, &source, &error));
    proxycfg_engine_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.source = source;
    options.source_kinds =
        (uint64_t)1 << PROXYCFG_QUERY_KIND_ENDPOINTS | (uint64_t)1 << PROXYCFG_QUERY_KIND_INTENTIONS;
    options.linger_ms = 1;
    proxycfg_engine *engine;
    OK(proxycfg_engine_new(&options, &engine, &error));
    proxycfg_queue *queue;
    proxycfg_watch_handle *watch;
    proxycfg_proxy_id id = proxy("p");
    id.token = text("secret");
    OK(proxycfg_queue_new(engine, &queue, &error));
    OK(proxycfg_queue_watch(queue, &id, 1, &watch, &error));
    proxycfg_registration registration;
    memset(&registration, 0, sizeof registration);
    registration.size = sizeof registration;
    registration.id = id;
    registration.definition =
        text("{\"Kind\": \"connect-proxy\", \"Service\": \"web-sidecar-proxy\", \"Port\": 21000, \"Proxy\": "
             "{\"DestinationServiceName\": \"web\", \"Upstreams\": [{\"DestinationName\": \"db\", \"LocalBindPort\": "
             "9191}]}}");
    OK(proxycfg_register(engine, &registration, NULL, &error));

    // The token comes with the question; the proxy says what it waits for.
    uint64_t intentions = asked(&me, "\"Kind\":\"intentions\"");
    pthread_mutex_lock(&me.lock);
    CHECK(strstr(me.asked[0], "|secret") != NULL);
    pthread_mutex_unlock(&me.lock);
    char told[512];
    for (int tries = 0; tries == 0 || strstr(told, "intentions of web") == NULL; tries++) {
        // The host is asked before the proxy's state is shown.
        CHECK(tries < 3000);
        proxycfg_error *why = NULL;
        CHECK(proxycfg_engine_wait_ready(engine, &id, 20, NULL, &why) == PROXYCFG_RESULT_TIMED_OUT);
        proxycfg_str message = proxycfg_error_message(why);
        snprintf(told, sizeof told, "%.*s", (int)message.len, message.data);
        proxycfg_error_free(why);
    }
    CHECK(strstr(told, "secret") == NULL);

    // A bad answer is refused, an error is shown, a good one serves.
    ENDS(REFUSED, proxycfg_source_answer(source, intentions, text("[{\"SourceNam\": \"x\"}]"), &error));
    ENDS(REFUSED, proxycfg_source_answer(source, intentions, text("nonsense"), &error));
    OK(proxycfg_source_error(source, intentions, text("the database is away"), 0, &error));
    uint64_t endpoints = asked(&me, "\"Kind\":\"endpoints\",\"Service\":\"db\"");
    proxycfg_answer both[2] = {
        {intentions,
         text("[{\"SourceName\": \"api\", \"DestinationName\": \"web\", \"Action\": \"allow\", \"Precedence\": 9}]")},
        {endpoints, text("[{\"Node\": \"x\", \"ServiceID\": \"db\", \"Address\": \"10.1.1.1\", \"Port\": 1}]")},
    };
    OK(proxycfg_source_answer_batch(source, both, 2, &error));
    until(queue, "/ConnectProxy/Upstreams/db/Endpoints", "10.1.1.1");

    // Both change in one step: no snapshot shows one without the other.
    for (int n = 2; n < 40; n++) {
        char first[256], second[256], wanted[32];
        snprintf(first, sizeof first,
                 "[{\"SourceName\": \"api%d\", \"DestinationName\": \"web\", \"Action\": \"allow\", \"Precedence\": 9}]",
                 n);
        snprintf(second, sizeof second, "[{\"Node\": \"x\", \"ServiceID\": \"db\", \"Address\": \"10.1.1.%d\", \"Port\": 1}]",
                 n);
        both[0].json = text(first);
        both[1].json = text(second);
        OK(proxycfg_source_answer_batch(source, both, 2, &error));
        snprintf(wanted, sizeof wanted, "\"api%d\"", n);
        proxycfg_delivery got;
        size_t number;
        OK(proxycfg_queue_poll(queue, &got, 1, 60000, &number, &error));
        CHECK(number == 1 && got.snapshot != NULL);
        CHECK(holds(got.snapshot, "/ConnectProxy/Intentions", wanted));
        snprintf(wanted, sizeof wanted, "10.1.1.%d\"", n);
        CHECK(holds(got.snapshot, "/ConnectProxy/Upstreams/db/Endpoints", wanted));
        proxycfg_snapshot_release(got.snapshot);
    }
    // One bad answer spoils the batch, and none is given.
    both[0].json = text("[]");
    both[1].json = text("{");
    ENDS(REFUSED, proxycfg_source_answer_batch(source, both, 2, &error));

    // Late answers of a subscription that has ended are ignored.
    OK(proxycfg_deregister(engine, &id, text(""), &error));
    wait_for(&me.unsubscribed, 2);
    OK(proxycfg_source_answer(source, endpoints, text("[]"), &error));
    OK(proxycfg_source_error(source, endpoints, text("late"), 0, &error));

    // An invalid token ends the proxy and its watches.
    pthread_mutex_lock(&me.lock);
    me.count = 0;
    pthread_mutex_unlock(&me.lock);
    OK(proxycfg_register(engine, &registration, NULL, &error));
    uint64_t again = asked(&me, "\"Kind\":\"intentions\"");
    CHECK(again > intentions);
    OK(proxycfg_source_error(source, again, text("token revoked"), 1, &error));
    for (;;) {
        proxycfg_delivery got;
        size_t number;
        OK(proxycfg_queue_poll(queue, &got, 1, 60000, &number, &error));
        CHECK(number == 1);
        if (got.snapshot == NULL) break;
        proxycfg_snapshot_release(got.snapshot);
    }

    // The end of engine and source: the data's end comes last.
    proxycfg_engine_free(engine);
    CHECK(counted(&me.ends) == 0);
    OK(proxycfg_source_answer(source, endpoints, text("[]"), &error));
    proxycfg_source_free(source);
    wait_for(&me.ends, 1);
    ENDS(INVALID_HANDLE, proxycfg_source_answer(source, endpoints, text("[]"), &error));
    CHECK(counted(&me.unsubscribed) == counted(&me.subscribed));
}

// A source that answers within subscribe.
static proxycfg_source *answering;

static void answers_at_once(void *user_data, const proxycfg_query *query) {
    OK(proxycfg_source_answer(answering, query->subscription, text("[]"), &error));
    count(user_data);
}

static void ignored(void *user_data, uint64_t subscription) {
    (void)user_data;
    (void)subscription;
}

static void an_answer_within_subscribe(void) {
    counter calls = COUNTER;
    proxycfg_source_functions table;
    memset(&table, 0, sizeof table);
    table.size = sizeof table;
    table.subscribe = answers_at_once;
    table.unsubscribe = ignored;
    OK(proxycfg_source_new(&table, &calls, NULL, &answering, &error));
    proxycfg_engine_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.source = answering;
    options.source_kinds = (uint64_t)1 << PROXYCFG_QUERY_KIND_ENDPOINTS;
    proxycfg_engine *engine;
    OK(proxycfg_engine_new(&options, &engine, &error));
    add_proxy(engine, "p");
    proxycfg_proxy_id id = proxy("p");
    OK(proxycfg_engine_wait_ready(engine, &id, 60000, NULL, &error));
    wait_for(&calls, 1);
    proxycfg_engine_free(engine);
    proxycfg_source_free(answering);
}

// The log.
typedef struct journal {
    counter lines;
    counter ends;
    int with_pointer;
} journal;

static void logged(void *user_data, int32_t level, proxycfg_str target, proxycfg_str message) {
    journal *me = user_data;
    CHECK(level >= PROXYCFG_LOG_LEVEL_ERROR && level <= PROXYCFG_LOG_LEVEL_WARN);
    CHECK(target.len >= 8 && memcmp(target.data, "proxycfg", 8) == 0 && message.len > 0);
    // It may call the library, and what that logs comes later.
    proxycfg_engine *engine = NULL;
    ENDS(INVALID_ARGUMENT, proxycfg_engine_new((proxycfg_engine_options[]){{0}}, &engine, &error));
    count(&me->lines);
}

static void journal_ended(void *user_data) { count(&((journal *)user_data)->ends); }

static void warn(proxycfg_engine *engine, unsigned n) {
    char json[256];
    // PeerMeta is known to Consul and has no effect here.
    snprintf(json, sizeof json,
             "{\"Ops\": [{\"Register\": {\"Node\": \"n%u\", \"Address\": \"1.1.1.1\", \"Service\": {\"Service\": \"s\", "
             "\"Connect\": {\"PeerMeta\": {\"A\": 1}}}}}]}",
             n);
    OK(proxycfg_engine_apply(engine, text(json), NULL, &error));
}

static void the_log_goes_to_the_host(void) {
    journal first = {COUNTER, COUNTER, 0}, second = {COUNTER, COUNTER, 0};
    proxycfg_engine *engine = new_engine();
    OK(proxycfg_log_set(logged, &first, journal_ended, PROXYCFG_LOG_LEVEL_WARN, &error));
    warn(engine, 1);
    wait_for(&first.lines, 1);
    // Another takes over: the first is called no more.
    OK(proxycfg_log_set(logged, &second, journal_ended, PROXYCFG_LOG_LEVEL_WARN, &error));
    CHECK(counted(&first.ends) == 1);
    long lines = counted(&first.lines);
    warn(engine, 2);
    wait_for(&second.lines, 1);
    CHECK(counted(&first.lines) == lines);
    OK(proxycfg_log_set(NULL, NULL, NULL, 0, &error));
    CHECK(counted(&second.ends) == 1);
    lines = counted(&second.lines);
    warn(engine, 3);
    CHECK(counted(&second.lines) == lines);
    proxycfg_engine_free(engine);
}

int main(void) {
    RUN(a_host_answers_some_queries_itself);
    RUN(an_answer_within_subscribe);
    RUN(the_log_goes_to_the_host);
    nothing_left();
    return 0;
}
