/* Stands for libnvidia-ml.so.1 where there is no NVIDIA GPU: it answers as NVML_STUB says. Declarations as in nvml.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, IS_LOST = 15, MISMATCH = 18,
       UNKNOWN = 999 };
enum { GPUS = 8, LOST = 3, FAULTY = 5, FIRST_MIG = 1000 };
typedef void *device;

static int is(const char *situation) {
    const char *asked = getenv("NVML_STUB");
    return asked && !strcmp(asked, situation);
}

static unsigned number(device one) { return (unsigned)(size_t)one - 1; }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (is("hang")) for (;;) pause();
    if (is("mismatch")) return MISMATCH;
    if (is("not-loaded")) return DRIVER_NOT_LOADED;
    if (is("unknown")) return UNKNOWN;
    return SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) {
    switch (code) {
        case MISMATCH: return "Driver/library version mismatch";
        case IS_LOST: return "GPU is lost";
        case DRIVER_NOT_LOADED: return "Driver Not Loaded";
        case NO_PERMISSION: return "Insufficient Permissions";
        case NOT_SUPPORTED: return "Not Supported";
        case NOT_FOUND: return "Not Found";
        default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    snprintf(text, size, "580.65.06");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = is("mig") ? 2 : GPUS;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *found) {
    if (is("lost") && index == LOST) return IS_LOST;
    if (is("not-ours") && index < GPUS - 2) return NO_PERMISSION; /* A job that was given the last two. */
    *found = (device)(size_t)(index + 1);
    return SUCCESS;
}

int nvmlDeviceGetUUID(device one, char *text, unsigned size) {
    snprintf(text, size, number(one) >= FIRST_MIG ? "MIG-%08x-1111-2222-3333-444444444444"
                                                  : "GPU-%08x-1111-2222-3333-444444444444", number(one));
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(device one, unsigned *count) {
    (void)one;
    *count = 7;
    return is("mig") ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device one, unsigned place, device *found) {
    if (place > 1) return NOT_FOUND;
    *found = (device)(size_t)(FIRST_MIG + 1 + 10 * number(one) + place);
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(device one, int type, int counter, unsigned long long *count) {
    (void)type, (void)counter;
    *count = is("ecc") && number(one) == FAULTY ? 2 : 0;
    return SUCCESS;
}

int nvmlDeviceGetEccMode(device one, int *now, int *pending) {
    (void)one;
    *now = *pending = 1;
    return SUCCESS;
}
