/* A stand-in for libnvidia-ml.so.1 whose GPUs are lines of a text file.
 *
 * The file is the one in $SROBUST_NVML_STATE, else /run/srobust-gpus/state. Each line is
 *
 *     TARGET KEY VALUE        TARGET: the GPU's slot (0, 1, ...), "*" for all, "system" for the driver
 *
 * and the last line for a key counts, so a change is a line appended, and running processes see it at their
 * next call. VALUE "-" means that the hardware does not have it (NVML_ERROR_NOT_SUPPORTED). Beside the keys
 * of the getters below:
 *
 *     system count 8          slots; without the file there is no driver
 *     system init 9           what nvmlInit returns
 *     system hang 1           every call hangs, also for one GPU ("3 hang 1") or function ("3 hang.FUNCTION 1")
 *     3 lost 1                every call about it fails with NVML_ERROR_GPU_IS_LOST
 *     3 absent 1              the driver does not list it; the GPUs behind it move up
 *     3 error.FUNCTION 999    what that function returns for it
 *     3 error 999             what every function returns for it that has no line of its own
 *     3 nvlink_version 5      NVLink 5 has other counters of errors than 4 has, and 4 others than 3
 *     3 xid 79                an event for whoever waits for one; each line is a new one
 *     3 processes 4711:2048   pid:MiB, separated by blanks; pid alone: the memory is not known
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15,
    ARGUMENT_VERSION_MISMATCH = 25
};
enum { MAX_GPUS = 64, EVERY = -1, SYSTEM = -2, MAX_VALUE = 4096 };
enum { POLL_US = 10000, XID_EVENT = 8 };

typedef int nvmlReturn_t;
typedef unsigned long long ull;
typedef struct { int slot; } Gpu, *nvmlDevice_t;

/* -- the state file ------------------------------------------------------------------------------------ */

typedef struct { int target; char *key, *value; } Line;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Gpu gpus[MAX_GPUS];
static int users;           /* nvmlInit calls without their nvmlShutdown */
static char *text;
static Line *lines;
static size_t line_count;
static struct stat known;   /* of the file when it was read */

static const char *state_path(void) {
    const char *path = getenv("SROBUST_NVML_STATE");
    return path && *path ? path : "/run/srobust-gpus/state";
}

static void forget(void) {
    free(text);
    free(lines);
    text = NULL;
    lines = NULL;
    line_count = 0;
}

static void parse(void) {
    size_t room = 1;
    for (char *c = text; *c; c++) room += *c == '\n';
    lines = calloc(room, sizeof *lines);
    char *rest = text, *line;
    while (lines && (line = strsep(&rest, "\n"))) {
        if (!rest) break; /* A line that is still being written has no end yet. */
        char *target = strsep(&line, " "), *key = strsep(&line, " ");
        if (!key || !*key || *target == '#') continue;
        int slot = !strcmp(target, "*") ? EVERY : !strcmp(target, "system") ? SYSTEM : atoi(target);
        lines[line_count++] = (Line){slot, key, line ? line : ""};
    }
}

/* Reads the file again if it changed. Returns whether there is one. The lock is held. */
static int refresh(void) {
    struct stat now;
    if (stat(state_path(), &now)) {
        forget();
        return 0;
    }
    int same = now.st_ino == known.st_ino && now.st_size == known.st_size &&
               now.st_mtim.tv_sec == known.st_mtim.tv_sec && now.st_mtim.tv_nsec == known.st_mtim.tv_nsec;
    if (text && same) return 1;
    forget();
    FILE *file = fopen(state_path(), "re");
    if (!file) return 0;
    known = now;
    text = malloc(now.st_size + 1);
    if (text) {
        text[fread(text, 1, now.st_size, file)] = 0;
        parse();
    }
    fclose(file);
    return text != NULL;
}

/* The value of a key, copied; NULL if no line says anything. The lock is held. */
static const char *find_locked(int slot, const char *key, char value[MAX_VALUE]) {
    for (size_t i = line_count; i-- > 0;) {
        int fits = lines[i].target == slot || (lines[i].target == EVERY && slot >= 0);
        if (!fits || strcmp(lines[i].key, key)) continue;
        snprintf(value, MAX_VALUE, "%s", lines[i].value);
        return value;
    }
    return NULL;
}

static const char *find(int slot, const char *key, char value[MAX_VALUE]) {
    pthread_mutex_lock(&lock);
    const char *found = find_locked(slot, key, value);
    pthread_mutex_unlock(&lock);
    return found;
}

static long long plain(int slot, const char *key, long long fallback) {
    char value[MAX_VALUE];
    const char *found = find(slot, key, value);
    return found ? strtoll(found, NULL, 0) : fallback;
}

/* A number of a GPU; NOT_SUPPORTED where the file says "-". */
static nvmlReturn_t number(nvmlDevice_t gpu, const char *key, long long fallback, long long *result) {
    char value[MAX_VALUE];
    const char *found = find(gpu->slot, key, value);
    if (found && !strcmp(found, "-")) return NOT_SUPPORTED;
    *result = found ? strtoll(found, NULL, 0) : fallback;
    return SUCCESS;
}

static nvmlReturn_t copy(const char *from, char *to, unsigned room) {
    if (strlen(from) >= room) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return SUCCESS;
}

static void hang(int slot, const char *function) {
    char key[128];
    snprintf(key, sizeof key, "hang.%s", function);
    while (plain(SYSTEM, "hang", 0) || plain(slot, "hang", 0) || plain(slot, key, 0)) {
        usleep(POLL_US); /* As a driver does; it goes on once the file lets it. */
        pthread_mutex_lock(&lock);
        refresh();
        pthread_mutex_unlock(&lock);
    }
}

static nvmlReturn_t enter_system(const char *function) {
    pthread_mutex_lock(&lock);
    int ready = users > 0, there = refresh();
    pthread_mutex_unlock(&lock);
    if (!ready) return UNINITIALIZED;
    if (!there) return DRIVER_NOT_LOADED;
    hang(SYSTEM, function);
    return SUCCESS;
}

/* What each call about a GPU does first. */
static nvmlReturn_t enter(nvmlDevice_t gpu, const char *function) {
    char key[128];
    nvmlReturn_t result = enter_system(function);
    if (result) return result;
    if (gpu < gpus || gpu >= gpus + MAX_GPUS) return INVALID_ARGUMENT;
    hang(gpu->slot, function);
    if (plain(gpu->slot, "lost", 0) || plain(gpu->slot, "absent", 0)) return GPU_IS_LOST;
    snprintf(key, sizeof key, "error.%s", function);
    return (nvmlReturn_t)plain(gpu->slot, key, plain(gpu->slot, "error", SUCCESS));
}

/* Structures say which version of them the caller means: its number, and its size in bytes. */
#define VERSION(type, number) ((unsigned)(sizeof(type) | (number) << 24))
#define EXPECT(info, number)                              \
    do {                                                  \
        if ((info)->version != VERSION(*(info), number))  \
            return ARGUMENT_VERSION_MISMATCH;             \
    } while (0)

#define ENTER(gpu)                                        \
    do {                                                  \
        nvmlReturn_t entered = enter((gpu), __func__);    \
        if (entered) return entered;                      \
    } while (0)

#define ENTER_SYSTEM()                                    \
    do {                                                  \
        nvmlReturn_t entered = enter_system(__func__);    \
        if (entered) return entered;                      \
    } while (0)

/* -- the driver ---------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_GPUS; i++) gpus[i].slot = i;
    int there = refresh();
    users += there;
    pthread_mutex_unlock(&lock);
    if (!there) return DRIVER_NOT_LOADED;
    hang(SYSTEM, __func__);
    nvmlReturn_t result = (nvmlReturn_t)plain(SYSTEM, "init", SUCCESS);
    if (result) users--;
    return result;
}

nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

nvmlReturn_t nvmlShutdown(void) {
    if (users <= 0) return UNINITIALIZED;
    users--;
    return SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t code) {
    switch (code) {
    case SUCCESS: return "Success";
    case NOT_SUPPORTED: return "Not Supported";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Error of the stand-in";
    }
}

#define SYSTEM_TEXT(function, key, fallback)                          \
    nvmlReturn_t function(char *to, unsigned room) {                  \
        ENTER_SYSTEM();                                               \
        char value[MAX_VALUE];                                        \
        const char *found = find(SYSTEM, key, value);                 \
        return copy(found ? found : fallback, to, room);              \
    }

SYSTEM_TEXT(nvmlSystemGetDriverVersion, "driver", "570.172.08")

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ENTER_SYSTEM();
    *version = (int)plain(SYSTEM, "cuda", 12080);
    return SUCCESS;
}

/* -- which GPUs there are ------------------------------------------------------------------------------ */

static int slots(void) {
    int count = (int)plain(SYSTEM, "count", 0);
    return count < 0 ? 0 : count > MAX_GPUS ? MAX_GPUS : count;
}

static int listed(int slot) { return slot < slots() && !plain(slot, "absent", 0); }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER_SYSTEM();
    *count = 0;
    for (int slot = 0; slot < MAX_GPUS; slot++) *count += listed(slot);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    ENTER_SYSTEM();
    for (int slot = 0; slot < MAX_GPUS; slot++) {
        if (!listed(slot) || index--) continue;
        ENTER(&gpus[slot]);
        *device = &gpus[slot];
        return SUCCESS;
    }
    return INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t gpu, unsigned *index) {
    ENTER(gpu);
    *index = 0;
    for (int slot = 0; slot < gpu->slot; slot++) *index += listed(slot);
    return SUCCESS;
}

#define TEXT(function, key, fallback, argument)                             \
    nvmlReturn_t function(nvmlDevice_t gpu, char *to, unsigned room) {      \
        ENTER(gpu);                                                         \
        return text_of(gpu, key, fallback, argument, to, room);             \
    }

static nvmlReturn_t text_of(
    nvmlDevice_t gpu, const char *key, const char *fallback, int argument, char *to, unsigned room) {
    char value[MAX_VALUE];
    const char *found = find(gpu->slot, key, value);
    if (found && !strcmp(found, "-")) return NOT_SUPPORTED;
    if (!found) {
        snprintf(value, sizeof value, fallback, argument);
        found = value;
    }
    return copy(found, to, room);
}

#define UUID "GPU-%08x-0000-4000-8000-000000000000"
#define BUS "00000000:%02X:00.0"
#define BUS_NUMBER(gpu) (0x10 + 0x10 * ((gpu)->slot % 15) + (gpu)->slot / 15)

TEXT(nvmlDeviceGetName, "name", "NVIDIA H200", 0)
TEXT(nvmlDeviceGetUUID, "uuid", UUID, gpu->slot)
TEXT(nvmlDeviceGetSerial, "serial", "16500000%05d", gpu->slot)

static nvmlReturn_t by_text(const char *wanted, nvmlDevice_t *device,
                            nvmlReturn_t (*name)(nvmlDevice_t, char *, unsigned)) {
    char own[MAX_VALUE];
    for (int slot = 0; slot < MAX_GPUS; slot++) {
        if (!listed(slot) || name(&gpus[slot], own, sizeof own) || strcasecmp(own, wanted)) continue;
        *device = &gpus[slot];
        return SUCCESS;
    }
    return NOT_FOUND;
}

static nvmlReturn_t bus_id(nvmlDevice_t gpu, char *to, unsigned room) {
    return text_of(gpu, "bus", BUS, BUS_NUMBER(gpu), to, room);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    ENTER_SYSTEM();
    return by_text(uuid, device, nvmlDeviceGetUUID);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *device) {
    ENTER_SYSTEM();
    nvmlReturn_t result = by_text(bus, device, bus_id);
    return result ? result : enter(*device, __func__);
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} PciInfo;

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t gpu, PciInfo *info) {
    ENTER(gpu);
    memset(info, 0, sizeof *info);
    nvmlReturn_t result = bus_id(gpu, info->bus_id, sizeof info->bus_id);
    sscanf(info->bus_id, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    snprintf(info->legacy, sizeof info->legacy, "%04X:%02X:%02X.0", info->domain & 0xffff, info->bus & 0xff,
             info->device & 0xff);
    info->id = 0x233510de;
    return result;
}

/* -- numbers ------------------------------------------------------------------------------------------- */

#define NUMBER(function, type, key, fallback)                               \
    nvmlReturn_t function(nvmlDevice_t gpu, type *result) {                 \
        ENTER(gpu);                                                         \
        long long value = 0;                                                \
        nvmlReturn_t found = number(gpu, key, fallback, &value);            \
        *result = (type)value;                                              \
        return found;                                                       \
    }

NUMBER(nvmlDeviceGetMinorNumber, unsigned, "minor", gpu->slot)
NUMBER(nvmlDeviceGetPersistenceMode, unsigned, "persistence", 1)
NUMBER(nvmlDeviceGetPerformanceState, unsigned, "pstate", 0)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "pcie_generation", 5)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "pcie_max_generation", 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "pcie_width", 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "pcie_max_width", 16)
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned, "pcie_replays", 0)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, ull, "throttle", 1)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, ull, "throttle", 1)
NUMBER(nvmlDeviceGetSupportedClocksEventReasons, ull, "throttle_supported", 0x1ff)
NUMBER(nvmlDeviceGetPowerUsage, unsigned, "power_mw", 75000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, "power_limit_mw", 700000)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, "retired_pending", 0)
NUMBER(nvmlDeviceGetSupportedEventTypes, ull, "event_types", 0x7f9f)

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t gpu, unsigned rates[2]) {
    ENTER(gpu);
    rates[0] = (unsigned)plain(gpu->slot, "utilization", 0);
    rates[1] = (unsigned)plain(gpu->slot, "memory_utilization", 0);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t gpu, int sensor, unsigned *result) {
    ENTER(gpu);
    long long value = 0;
    if (sensor) return INVALID_ARGUMENT;
    nvmlReturn_t found = number(gpu, "temperature", 35, &value);
    *result = (unsigned)value;
    return found;
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t gpu, int which, unsigned *result) {
    static const struct { const char *key; int fallback; } thresholds[] = {
        {"temperature_shutdown", 92}, {"temperature_slowdown", 89},
        {"memory_temperature_max", 105}, {"temperature_max", 87},
    };
    ENTER(gpu);
    if (which < 0 || which > 3) return NOT_SUPPORTED;
    long long value = 0;
    nvmlReturn_t found = number(gpu, thresholds[which].key, thresholds[which].fallback, &value);
    *result = (unsigned)value;
    return found;
}

typedef struct { unsigned version; int margin; } Margin;

nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t gpu, Margin *info) {
    ENTER(gpu);
    EXPECT(info, 1);
    long long margin = plain(gpu->slot, "temperature_max", 87) - plain(gpu->slot, "temperature", 35);
    nvmlReturn_t found = number(gpu, "temperature_margin", margin, &margin);
    info->margin = (int)margin;
    return found;
}

static nvmlReturn_t clock_of(nvmlDevice_t gpu, const char *kind, int type, int fallback, unsigned *result) {
    static const char *const domains[] = {"graphics", "sm", "memory", "video"};
    char key[64];
    long long value = 0;
    if (type < 0 || type > 3) return INVALID_ARGUMENT;
    snprintf(key, sizeof key, "%s_%s", kind, domains[type]);
    nvmlReturn_t found = number(gpu, key, type == 2 ? 3201 : fallback, &value);
    *result = (unsigned)value;
    return found;
}

#define CLOCK(function, kind, fallback)                                          \
    nvmlReturn_t function(nvmlDevice_t gpu, int type, unsigned *result) {        \
        ENTER(gpu);                                                              \
        return clock_of(gpu, kind, type, fallback, result);                      \
    }

CLOCK(nvmlDeviceGetClockInfo, "clock", 345)
CLOCK(nvmlDeviceGetMaxClockInfo, "max_clock", 1980)
CLOCK(nvmlDeviceGetApplicationsClock, "application_clock", 1980)
CLOCK(nvmlDeviceGetDefaultApplicationsClock, "default_clock", 1980)

/* -- memory -------------------------------------------------------------------------------------------- */

typedef struct { unsigned pid; ull memory; unsigned instance, compute; } Process;

static unsigned processes_of(nvmlDevice_t gpu, Process *found, unsigned room, ull *memory) {
    char value[MAX_VALUE];
    char *rest = (char *)find(gpu->slot, "processes", value), *word;
    unsigned count = 0;
    while (rest && (word = strsep(&rest, " "))) {
        unsigned pid = 0;
        ull mib = 0;
        int fields = sscanf(word, "%u:%llu", &pid, &mib);
        if (fields < 1) continue;
        if (found && count < room)
            found[count] = (Process){pid, fields == 2 ? mib << 20 : ~0ULL, ~0U, ~0U};
        if (memory) *memory += mib << 20;
        count++;
    }
    return count;
}

static nvmlReturn_t list_processes(nvmlDevice_t gpu, unsigned *count, Process *found) {
    unsigned room = found ? *count : 0;
    *count = processes_of(gpu, found, room, NULL);
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t gpu, unsigned *count, Process *found) {
    ENTER(gpu);
    return list_processes(gpu, count, found);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t gpu, unsigned *count, Process *found) {
    ENTER(gpu);
    (void)found;
    *count = 0;
    return SUCCESS;
}

static void memory_of(nvmlDevice_t gpu, ull *total, ull *reserved, ull *used) {
    ull in_use = 0;
    processes_of(gpu, NULL, 0, &in_use);
    *total = (ull)plain(gpu->slot, "memory_total", 143771) << 20;
    *reserved = (ull)plain(gpu->slot, "memory_reserved", 620) << 20;
    *used = (ull)plain(gpu->slot, "memory_used", (long long)(in_use >> 20)) << 20;
}

typedef struct { ull total, free, used; } Memory;
typedef struct { unsigned version; ull total, reserved, free, used; } MemoryV2;

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t gpu, Memory *info) {
    ENTER(gpu);
    ull reserved;
    memory_of(gpu, &info->total, &reserved, &info->used);
    info->used += reserved;
    info->free = info->total - info->used;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t gpu, MemoryV2 *info) {
    ENTER(gpu);
    EXPECT(info, 2);
    memory_of(gpu, &info->total, &info->reserved, &info->used);
    info->free = info->total - info->reserved - info->used;
    return SUCCESS;
}

/* -- errors of memory ---------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t gpu, unsigned *current, unsigned *pending) {
    ENTER(gpu);
    long long value = 0;
    nvmlReturn_t found = number(gpu, "ecc", 1, &value);
    *current = *pending = (unsigned)value;
    return found;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t gpu, int uncorrected, int aggregate, ull *result) {
    ENTER(gpu);
    char key[64];
    long long value = 0;
    snprintf(key, sizeof key, "ecc_%s_%s", aggregate ? "aggregate" : "volatile",
             uncorrected ? "uncorrected" : "corrected");
    nvmlReturn_t found = plain(gpu->slot, "ecc", 1) ? number(gpu, key, 0, &value) : NOT_SUPPORTED;
    *result = (ull)value;
    return found;
}

typedef struct {
    unsigned version;
    ull aggregate_parity, aggregate_secded, aggregate_corrected;
    ull volatile_parity, volatile_secded, volatile_corrected;
    ull buckets[5];
    unsigned threshold_exceeded;
} SramStatus;

nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t gpu, SramStatus *status) {
    ENTER(gpu);
    EXPECT(status, 1);
    unsigned version = status->version;
    memset(status, 0, sizeof *status);
    status->version = version;
    status->threshold_exceeded = (unsigned)plain(gpu->slot, "sram_threshold_exceeded", 0);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t gpu, unsigned *corrected, unsigned *uncorrected,
                                       unsigned *pending, unsigned *failure) {
    ENTER(gpu);
    long long value = 0;
    nvmlReturn_t found = number(gpu, "remapped_corrected", 0, &value);
    *corrected = (unsigned)value;
    *uncorrected = (unsigned)plain(gpu->slot, "remapped_uncorrected", 0);
    *pending = (unsigned)plain(gpu->slot, "remap_pending", 0);
    *failure = (unsigned)plain(gpu->slot, "remap_failure", 0);
    return found;
}

/* GPUs that remap rows retire no pages: not supported unless the file says otherwise. */
nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t gpu, int uncorrected, unsigned *count, ull *addresses) {
    ENTER(gpu);
    long long pages = plain(gpu->slot, uncorrected ? "retired_uncorrected" : "retired_corrected", -1);
    unsigned room = addresses ? *count : 0;
    if (pages < 0) return NOT_SUPPORTED;
    *count = (unsigned)pages;
    for (unsigned i = 0; i < *count && i < room; i++) addresses[i] = 0x10000ULL * (i + 1);
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* -- links and fields ---------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t gpu, unsigned link, unsigned *active) {
    ENTER(gpu);
    char key[64];
    long long links = 0;
    nvmlReturn_t found = number(gpu, "nvlinks", 18, &links);
    if (found) return found;
    if (link >= (unsigned)links) return INVALID_ARGUMENT;
    snprintf(key, sizeof key, "nvlink.%u", link);
    *active = plain(gpu->slot, key, 1) != 0;
    return SUCCESS;
}

typedef struct {
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique, state, health;
} FabricInfo;

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t gpu, FabricInfo *info) {
    ENTER(gpu);
    EXPECT(info, 2);
    long long state = 0;
    nvmlReturn_t found = number(gpu, "fabric_state", 3, &state);
    memset(info->cluster, (int)plain(gpu->slot, "fabric_cluster", 0), sizeof info->cluster);
    info->status = (int)plain(gpu->slot, "fabric_status", SUCCESS);
    info->clique = (unsigned)plain(gpu->slot, "fabric_clique", 0);
    info->state = (unsigned)state;
    info->health = (unsigned)plain(gpu->slot, "fabric_health", 0);
    return found;
}

typedef struct {
    unsigned id, scope;
    long long timestamp, latency;
    unsigned type;
    nvmlReturn_t result;
    ull value;
} Field;

enum { UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3, SIGNED_INT = 5 };

/* ``oldest`` and ``newest``: the NVLink versions that have the field; 0: it is no counter of a link. */
static const struct {
    unsigned id, type;
    const char *key;
    int fallback, oldest, newest, is_per_link;
} known_fields[] = {
    {38, UNSIGNED_LONG_LONG, "nvlink_crc_flit", 0, 1, 3, 0},
    {45, UNSIGNED_LONG_LONG, "nvlink_crc_data", 0, 1, 3, 0},
    {52, UNSIGNED_LONG_LONG, "nvlink_replay", 0, 1, 3, 0},
    {59, UNSIGNED_LONG_LONG, "nvlink_recovery", 0, 1, 3, 0},
    {82, UNSIGNED_INT, "memory_temperature", 40, 0, 0, 0},
    {91, UNSIGNED_INT, "nvlinks", 18, 0, 0, 0},
    {94, UNSIGNED_INT, "pcie_replays", 0, 0, 0, 0},
    {161, UNSIGNED_LONG_LONG, "nvlink_replay", 0, 1, 4, 1},
    {162, UNSIGNED_LONG_LONG, "nvlink_recovery", 0, 1, 4, 1},
    {163, UNSIGNED_LONG_LONG, "nvlink_crc", 0, 1, 4, 1},
    {194, SIGNED_INT, "slowdown_tlimit", -2, 0, 0, 0},
    {208, UNSIGNED_LONG_LONG, "nvlink_receive_errors", 0, 5, 5, 1},
    {211, UNSIGNED_LONG_LONG, "nvlink_integrity_errors", 0, 5, 5, 1},
    {215, UNSIGNED_LONG_LONG, "nvlink_recovery", 0, 5, 5, 1},
    {230, UNSIGNED_INT, "recovery_action", 0, 0, 0, 0},
};

/* The value of a field; that of one link is "KEY.LINK". The rest of the union is not the caller's to read. */
static nvmlReturn_t value_of(nvmlDevice_t gpu, Field *field) {
    char key[64];
    for (size_t k = 0; k < sizeof known_fields / sizeof *known_fields; k++) {
        if (known_fields[k].id != field->id) continue;
        long long value = 0, version = plain(gpu->slot, "nvlink_version", 4);
        if (known_fields[k].newest && (version < known_fields[k].oldest || version > known_fields[k].newest))
            return NOT_SUPPORTED;
        if (known_fields[k].is_per_link && field->scope >= (unsigned)plain(gpu->slot, "nvlinks", 18))
            return INVALID_ARGUMENT;
        snprintf(key, sizeof key, known_fields[k].is_per_link ? "%s.%u" : "%s", known_fields[k].key,
                 field->scope);
        nvmlReturn_t result = number(gpu, key, known_fields[k].fallback, &value);
        field->type = known_fields[k].type;
        field->value = known_fields[k].type == UNSIGNED_LONG_LONG ? (ull)value : ~0ULL << 32 | (unsigned)value;
        return result;
    }
    return NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t gpu, int count, Field *fields) {
    ENTER(gpu);
    if (count < 1) return INVALID_ARGUMENT; /* as driver 580 does */
    for (int i = 0; i < count; i++) fields[i].result = value_of(gpu, &fields[i]);
    return SUCCESS;
}

/* -- events -------------------------------------------------------------------------------------------- */

typedef struct {
    ull types[MAX_GPUS];
    size_t seen; /* lines with an XID that were there already, or were handed out */
} EventSet;

typedef struct { nvmlDevice_t device; ull type, data; unsigned instance, compute; } EventData;

/* The next event of the set, if there is one; whether there is. The lock is held. */
static int next_event(EventSet *set, EventData *event) {
    size_t count = 0;
    for (size_t i = 0; i < line_count; i++) {
        if (strcmp(lines[i].key, "xid") || count++ < set->seen) continue;
        set->seen = count;
        int slot = lines[i].target;
        if (slot < 0 || slot >= MAX_GPUS || !(set->types[slot] & XID_EVENT)) continue;
        *event = (EventData){&gpus[slot], XID_EVENT, strtoull(lines[i].value, NULL, 0), ~0U, ~0U};
        return 1;
    }
    set->seen = count; /* Fewer than before, if the file was written anew. */
    return 0;
}

nvmlReturn_t nvmlEventSetCreate(EventSet **set) {
    ENTER_SYSTEM();
    *set = calloc(1, sizeof **set);
    pthread_mutex_lock(&lock);
    while (next_event(*set, &(EventData){0})) {}
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t gpu, ull types, EventSet *set) {
    ENTER(gpu);
    set->types[gpu->slot] |= types;
    return SUCCESS;
}

nvmlReturn_t nvmlEventSetWait_v2(EventSet *set, EventData *event, unsigned timeout_ms) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    long long end = now.tv_sec * 1000LL + now.tv_nsec / 1000000 + timeout_ms;
    for (;;) {
        ENTER_SYSTEM();
        pthread_mutex_lock(&lock);
        int found = next_event(set, event);
        pthread_mutex_unlock(&lock);
        if (found) return SUCCESS;
        for (int slot = 0; slot < MAX_GPUS; slot++)
            if (set->types[slot] && plain(slot, "lost", 0)) return GPU_IS_LOST;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec * 1000LL + now.tv_nsec / 1000000 >= end) return TIMEOUT;
        usleep(POLL_US);
    }
}

nvmlReturn_t nvmlEventSetFree(EventSet *set) {
    free(set);
    return SUCCESS;
}
