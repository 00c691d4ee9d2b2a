/*
 * MIG: a divided GPU. GPU instances use slices of its memory and of its multiprocessors, compute instances share those
 * of a GPU instance, and each compute instance is seen as a MIG device. A device file below /dev/nvidia-caps says who may
 * use an instance, /proc/driver which file that is; both are made and removed with the instance.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "device.h"

enum { SLICES = 7, MEMORY_SLICES = 8, GPU_INSTANCES = 15, COMPUTE_INSTANCES = 8, NO_KIND = -1 };

/* The ways to cut a GPU. `starts`: the memory slices at which such an instance may begin, in the driver's order. */
static const struct kind {
    const char *key;          /* of what a model's instance has: name, multiprocessors, MiB, engines */
    unsigned profile;         /* NVML_GPU_INSTANCE_PROFILE_… */
    unsigned id;              /* as in nvidia-smi's output and options */
    unsigned slices, size;    /* of multiprocessors, of memory */
    unsigned instances;       /* at most */
    unsigned first_id;        /* of the instances of this size */
    int starts[SLICES + 1];   /* ends with -1 */
} kinds[] = {
    {"mig_1_slice", 0, 19, 1, 1, 7, 7, {6, 4, 5, 0, 1, 2, 3, -1}},
    {"mig_1_slice_media", 7, 20, 1, 1, 1, 7, {6, 4, 5, 0, 1, 2, 3, -1}},
    {"mig_1_slice_double", 9, 15, 1, 2, 4, 3, {6, 4, 0, 2, -1}},
    {"mig_2_slice", 1, 14, 2, 2, 3, 3, {4, 0, 2, -1}},
    {"mig_3_slice", 2, 9, 3, 4, 2, 1, {4, 0, -1}},
    {"mig_4_slice", 3, 5, 4, 4, 1, 1, {0, -1}},
    {"mig_7_slice", 4, 0, 7, 8, 1, 0, {0, -1}},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* The sizes of compute instances, in slices; the place in the list is both profile and id. */
static const unsigned compute_sizes[] = {1, 2, 3, 4, 7};
enum { COMPUTE_SIZES = sizeof compute_sizes / sizeof *compute_sizes };

/* What a model's instance of a kind has, as its profile says. */
struct share {
    char name[16];
    unsigned multiprocessors, mebibytes, copy_engines, decoders, jpeg, ofa;
};

static bool read_share(const struct device *device, const struct kind *kind, struct share *share)
{
    char text[CONFIG_VALUE];
    return config_text(device->minor, kind->key, text) &&
           sscanf(text, "%15s %u %u %u %u %u %u", share->name, &share->multiprocessors, &share->mebibytes,
                  &share->copy_engines, &share->decoders, &share->jpeg, &share->ofa) == 7;
}

/* What there is on a device, kept in its state as `id:profile:start` and `gpu instance:id:profile:start`. */
struct layout {
    unsigned count, compute_count;
    struct gpu_part {
        unsigned id, start;
        const struct kind *kind;
    } parts[SLICES];
    struct compute_part {
        unsigned part, id, size, start;
    } computes[SLICES];
};

/* Handles: one for every instance that there can be. A compute instance and its MIG device are the same. */
struct gpu_instance {
    struct device *device;
    unsigned id;
};
static struct gpu_instance gpu_instances[MAX_DEVICES][GPU_INSTANCES];
static struct device mig_devices[MAX_DEVICES][GPU_INSTANCES][COMPUTE_INSTANCES];

static long number_of(const struct device *device, const char *key)
{
    return config_number_or(device->minor, key, 0);
}

bool mig_enabled(const struct device *device)
{
    return number_of(device, "mig_devices") > 0 && number_of(device, "mig_mode") == 1;
}

static const struct kind *kind_by_id(unsigned id)
{
    for (int i = 0; i < KINDS; i++)
        if (kinds[i].id == id)
            return &kinds[i];
    return NULL;
}

static void read_layout(const struct device *device, struct layout *layout)
{
    char text[CONFIG_VALUE];
    unsigned id, profile, start, part;
    int length;
    memset(layout, 0, sizeof *layout);
    if (!mig_enabled(device))
        return;
    if (config_text(device->minor, "mig_gpu_instances", text))
        for (char *at = text; layout->count < SLICES && sscanf(at, "%u:%u:%u%n", &id, &profile, &start, &length) == 3;
             at += length + (at[length] == ','))
            layout->parts[layout->count++] = (struct gpu_part){id, start, kind_by_id(profile)};
    if (config_text(device->minor, "mig_compute_instances", text))
        for (char *at = text; layout->compute_count < SLICES &&
                              sscanf(at, "%u:%u:%u:%u%n", &part, &id, &profile, &start, &length) == 4;
             at += length + (at[length] == ','))
            layout->computes[layout->compute_count++] = (struct compute_part){part, id, profile, start};
}

/* With the state's lock held. */
static bool write_layout(const struct device *device, const struct layout *layout)
{
    char parts[CONFIG_VALUE] = "", computes[CONFIG_VALUE] = "";
    size_t end = 0;
    for (unsigned i = 0; i < layout->count; i++)
        end += (size_t)snprintf(parts + end, sizeof parts - end, "%s%u:%u:%u", i ? "," : "", layout->parts[i].id,
                                layout->parts[i].kind->id, layout->parts[i].start);
    end = 0;
    for (unsigned i = 0; i < layout->compute_count; i++)
        end += (size_t)snprintf(computes + end, sizeof computes - end, "%s%u:%u:%u:%u", i ? "," : "",
                                layout->computes[i].part, layout->computes[i].id, layout->computes[i].size,
                                layout->computes[i].start);
    return state_write(STATE, device->minor, "mig_gpu_instances", *parts ? parts : NULL) &&
           state_write(STATE, device->minor, "mig_compute_instances", *computes ? computes : NULL);
}

static const struct gpu_part *part_by_id(const struct layout *layout, unsigned id)
{
    for (unsigned i = 0; i < layout->count; i++)
        if (layout->parts[i].id == id)
            return &layout->parts[i];
    return NULL;
}

static const struct compute_part *compute_by_id(const struct layout *layout, unsigned part, unsigned id)
{
    for (unsigned i = 0; i < layout->compute_count; i++)
        if (layout->computes[i].part == part && layout->computes[i].id == id)
            return &layout->computes[i];
    return NULL;
}

/* The driver's fixed numbering of the files that grant access, in NO_KIND's case to the GPU instance itself. */
static unsigned capability(const struct device *device, unsigned part, int compute)
{
    enum { FIRST = 3 };
    return FIRST + ((unsigned)device->minor * GPU_INSTANCES + part) * (COMPUTE_INSTANCES + 1) + (unsigned)(compute + 1);
}

static void make_parents(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0555);
        *slash = '/';
    }
}

/* Makes or removes what grants access to a GPU instance, or to one of its compute instances. */
static void grant(const struct device *device, unsigned part, int compute, bool there)
{
    enum { MAJOR = 508, READABLE = 0444 };
    char file[64], folder[96], name[112];
    unsigned number = capability(device, part, compute);
    snprintf(file, sizeof file, "/dev/nvidia-caps/nvidia-cap%u", number);
    int length = snprintf(folder, sizeof folder, "/proc/driver/nvidia/capabilities/gpu%d/mig/gi%u", device->minor, part);
    if (compute != NO_KIND)
        snprintf(folder + length, sizeof folder - (size_t)length, "/ci%d", compute);
    snprintf(name, sizeof name, "%s/access", folder);
    if (!there) {
        unlink(name);
        rmdir(folder);
        unlink(file);
        return;
    }
    mode_t mask = umask(0);
    mknod(file, S_IFCHR | READABLE, makedev(MAJOR, number));
    make_parents(name);
    FILE *access = fopen(name, "we");
    if (access) {
        fprintf(access, "DeviceFileMinor: %u\nDeviceFileMode: %d\nDeviceFileModify: 1\n", number, READABLE);
        fclose(access);
    }
    umask(mask);
}

void mig_remove_all(const struct device *device)
{
    struct layout layout;
    read_layout(device, &layout);
    for (unsigned i = 0; i < layout.compute_count; i++)
        grant(device, layout.computes[i].part, (int)layout.computes[i].id, false);
    for (unsigned i = 0; i < layout.count; i++)
        grant(device, layout.parts[i].id, NO_KIND, false);
}

static bool granted(const struct device *device, unsigned part, int compute)
{
    char file[64];
    snprintf(file, sizeof file, "/dev/nvidia-caps/nvidia-cap%u", capability(device, part, compute));
    return device_open_error(file) == 0;
}

static struct gpu_instance *instance_handle(struct device *device, unsigned id)
{
    struct gpu_instance *handle = &gpu_instances[device->index][id];
    handle->device = device;
    handle->id = id;
    return handle;
}

static struct device *mig_handle(struct device *device, const struct compute_part *compute)
{
    char seed[96];
    struct device *handle = &mig_devices[device->index][compute->part][compute->id];
    int index = handle->index;
    *handle = *device;
    handle->index = index;
    handle->parent = device;
    handle->gpu_instance = compute->part;
    handle->compute_instance = compute->id;
    snprintf(seed, sizeof seed, "%s/%u/%u", device->uuid, compute->part, compute->id);
    device_uuid("MIG", seed, handle->uuid);
    return handle;
}

/* True for the handle of an existing MIG device; `layout` is its GPU's, with `part` and `compute`. */
static bool lookup(nvmlDevice_t handle, struct layout *layout, const struct gpu_part **part,
                   const struct compute_part **compute)
{
    const struct device *first = &mig_devices[0][0][0];
    if (handle < first || handle >= first + sizeof mig_devices / sizeof *first || !handle->parent)
        return false;
    read_layout(handle->parent, layout);
    *part = part_by_id(layout, handle->gpu_instance);
    *compute = compute_by_id(layout, handle->gpu_instance, handle->compute_instance);
    return *part && *compute;
}

bool mig_exists(nvmlDevice_t handle)
{
    struct layout layout;
    const struct gpu_part *part;
    const struct compute_part *compute;
    return lookup(handle, &layout, &part, &compute);
}

nvmlReturn_t mig_name(nvmlDevice_t device, char *out, unsigned length)
{
    struct layout layout;
    const struct gpu_part *part;
    const struct compute_part *compute;
    struct share share;
    char model[CONFIG_VALUE], cut[16] = "", name[CONFIG_VALUE + 64];
    if (!lookup(device, &layout, &part, &compute) || !read_share(device, part->kind, &share) ||
        !config_text(device->minor, "name", model))
        return NVML_ERROR_NOT_FOUND;
    if (compute_sizes[compute->size] < part->kind->slices)
        snprintf(cut, sizeof cut, "%uc.", compute_sizes[compute->size]);
    snprintf(name, sizeof name, "%s MIG %s%s", model, cut, share.name);
    return device_copy_text(name, out, length);
}

unsigned long long mig_memory(nvmlDevice_t device)
{
    nvmlDeviceAttributes_t attributes;
    return nvmlDeviceGetAttributes_v2(device, &attributes) == NVML_SUCCESS ? attributes.memorySizeMB * MIB : 0;
}

/* Mode. */

EXPORT nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    CHECK(device, current);
    if (number_of(device, "mig_devices") == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = mig_enabled(device);
    if (pending)
        *pending = *current;
    return NVML_SUCCESS;
}

/* Without processes, the device is reset immediately and the mode is on. Ampere keeps it over a reboot. */
EXPORT nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *activation)
{
    struct layout layout;
    int lock;
    CHECK(device, activation);
    if (number_of(device, "mig_devices") == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (mode > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!state_lock(&lock))
        return NVML_ERROR_NO_PERMISSION;
    read_layout(device, &layout);
    bool in_use = !mode && layout.count;
    bool kept = number_of(device, "architecture") == NVML_ARCH_AMPERE;
    bool done = !in_use && state_write(kept ? KEPT_STATE : STATE, device->minor, "mig_mode", mode ? "1" : NULL);
    state_unlock(lock);
    *activation = in_use ? NVML_ERROR_IN_USE : NVML_SUCCESS;
    return in_use ? NVML_ERROR_IN_USE : done ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

EXPORT nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
    CHECK(device, count);
    *count = mig_enabled(device) ? (unsigned)number_of(device, "mig_devices") : 0;
    return NVML_SUCCESS;
}

/* GPU instances. */

static bool free_at(const struct layout *layout, const struct kind *kind, unsigned start)
{
    unsigned slices = kind->slices, alike = 0;
    for (unsigned i = 0; i < layout->count; i++) {
        const struct gpu_part *part = &layout->parts[i];
        if (start < part->start + part->kind->size && part->start < start + kind->size)
            return false;
        slices += part->kind->slices;
        alike += part->kind == kind;
    }
    return slices <= SLICES && alike < kind->instances;
}

/* Adds an instance where the driver would, or at `start`; false if there is no room. */
static bool place(struct layout *layout, const struct kind *kind, int start)
{
    for (const int *at = kind->starts; *at >= 0; at++) {
        if ((start >= 0 && *at != start) || !free_at(layout, kind, (unsigned)*at))
            continue;
        unsigned id = kind->first_id + (unsigned)*at / kind->size;
        layout->parts[layout->count++] = (struct gpu_part){id, (unsigned)*at, kind};
        return true;
    }
    return false;
}

static nvmlReturn_t kind_check(nvmlDevice_t device, const struct kind *kind, const void *out, struct share *share)
{
    CHECK(device, out);
    return kind && read_share(device, kind, share) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t by_profile(nvmlDevice_t device, unsigned profile, const void *out, const struct kind **kind,
                               struct share *share)
{
    *kind = NULL;
    for (int i = 0; i < KINDS; i++)
        if (kinds[i].profile == profile)
            *kind = &kinds[i];
    return kind_check(device, *kind, out, share);
}

EXPORT nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned profile, nvmlGpuInstanceProfileInfo_t *out)
{
    const struct kind *kind;
    struct share share;
    TRY(by_profile(device, profile, out, &kind, &share));
    *out = (nvmlGpuInstanceProfileInfo_t){
        kind->id, 0, kind->slices, kind->instances, share.multiprocessors, share.copy_engines, share.decoders, 0,
        share.jpeg, share.ofa, share.mebibytes,
    };
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned profile, nvmlGpuInstanceProfileInfo_v2_t *out)
{
    const struct kind *kind;
    struct share share;
    TRY(by_profile(device, profile, out, &kind, &share));
    if (out->version >> 24 == 3) {
        nvmlGpuInstanceProfileInfo_v3_t *third = (void *)out;
        *third = (nvmlGpuInstanceProfileInfo_v3_t){
            out->version, kind->id, kind->slices, kind->instances, share.multiprocessors, share.copy_engines,
            share.decoders, 0, share.jpeg, share.ofa, share.mebibytes, "", 0,
        };
        snprintf(third->name, sizeof third->name, "MIG %s", share.name);
    } else {
        *out = (nvmlGpuInstanceProfileInfo_v2_t){
            out->version, kind->id, 0, kind->slices, kind->instances, share.multiprocessors, share.copy_engines,
            share.decoders, 0, share.jpeg, share.ofa, share.mebibytes, "",
        };
        snprintf(out->name, sizeof out->name, "MIG %s", share.name);
    }
    return NVML_SUCCESS;
}

/* All that there are, whatever is taken. */
EXPORT nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned id, nvmlPlacement_t *out,
                                                     unsigned *count)
{
    const struct kind *kind = kind_by_id(id);
    struct share share;
    unsigned found = 0;
    TRY(kind_check(device, kind, count, &share));
    for (unsigned start = 0; start < MEMORY_SLICES; start++)
        for (const int *at = kind->starts; *at >= 0; at++)
            if (*at == (int)start) {
                if (out && found < *count)
                    out[found] = (nvmlPlacement_t){start, kind->size};
                found++;
            }
    *count = found;
    return NVML_SUCCESS;
}

ALIAS(nvmlDeviceGetGpuInstancePossiblePlacements, nvmlDeviceGetGpuInstancePossiblePlacements_v2);

EXPORT nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned id, unsigned *count)
{
    const struct kind *kind = kind_by_id(id);
    struct share share;
    struct layout layout;
    TRY(kind_check(device, kind, count, &share));
    read_layout(device, &layout);
    for (*count = 0; place(&layout, kind, -1); ++*count)
        ;
    return NVML_SUCCESS;
}

static nvmlReturn_t create(nvmlDevice_t device, unsigned id, int start, nvmlGpuInstance_t *out)
{
    const struct kind *kind = kind_by_id(id);
    struct share share;
    struct layout layout;
    int lock;
    TRY(kind_check(device, kind, out, &share));
    if (!mig_enabled(device))
        return NVML_ERROR_NOT_SUPPORTED;
    if (!state_lock(&lock))
        return NVML_ERROR_NO_PERMISSION;
    read_layout(device, &layout);
    bool placed = place(&layout, kind, start), written = placed && write_layout(device, &layout);
    if (written) {
        unsigned new = layout.parts[layout.count - 1].id;
        grant(device, new, NO_KIND, true);
        *out = instance_handle(device, new);
    }
    state_unlock(lock);
    return written ? NVML_SUCCESS : placed ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_INSUFFICIENT_RESOURCES;
}

EXPORT nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *out)
{
    return create(device, id, -1, out);
}

EXPORT nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned id, const nvmlPlacement_t *placement,
                                                nvmlGpuInstance_t *out)
{
    return placement ? create(device, id, (int)placement->start, out) : NVML_ERROR_INVALID_ARGUMENT;
}

/* Who sees GPU instances: who may open the file that the driver has for monitoring. */
static nvmlReturn_t monitor_check(nvmlDevice_t device, const void *out)
{
    CHECK(device, out);
    if (!mig_enabled(device))
        return NVML_ERROR_NOT_SUPPORTED;
    return device_open_error("/dev/nvidia-caps/nvidia-cap2") == 0 ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

EXPORT nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *out, unsigned *count)
{
    struct layout layout;
    TRY(monitor_check(device, count));
    read_layout(device, &layout);
    *count = 0;
    for (unsigned i = 0; out && i < layout.count; i++)
        if (layout.parts[i].kind->id == id)
            out[(*count)++] = instance_handle(device, layout.parts[i].id);
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *out)
{
    struct layout layout;
    CHECK(device, out);
    read_layout(device, &layout);
    if (!part_by_id(&layout, id))
        return mig_enabled(device) ? NVML_ERROR_NOT_FOUND : NVML_ERROR_NOT_SUPPORTED;
    *out = instance_handle(device, id);
    return NVML_SUCCESS;
}

/* The instance of a handle, with its device's layout; INVALID_ARGUMENT if it does not exist any more. */
static nvmlReturn_t instance_check(nvmlGpuInstance_t instance, const void *out, struct layout *layout,
                                   const struct gpu_part **part)
{
    if (!instance || !instance->device)
        return NVML_ERROR_INVALID_ARGUMENT;
    CHECK(instance->device, out);
    read_layout(instance->device, layout);
    *part = part_by_id(layout, instance->id);
    return *part ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *out)
{
    struct layout layout;
    const struct gpu_part *part;
    TRY(instance_check(instance, out, &layout, &part));
    *out = (nvmlGpuInstanceInfo_t){instance->device, part->id, part->kind->id, {part->start, part->kind->size}};
    return NVML_SUCCESS;
}

EXPORT nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
    struct layout layout;
    const struct gpu_part *part;
    nvmlReturn_t result;
    int lock;
    TRY(instance_check(instance, instance, &layout, &part));
    if (!state_lock(&lock))
        return NVML_ERROR_NO_PERMISSION;
    result = instance_check(instance, instance, &layout, &part);
    for (unsigned i = 0; i < layout.compute_count; i++)
        if (layout.computes[i].part == instance->id)
            result = NVML_ERROR_IN_USE;
    if (result == NVML_SUCCESS) {
        layout.parts[part - layout.parts] = layout.parts[--layout.count];
        result = write_layout(instance->device, &layout) ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
        grant(instance->device, instance->id, NO_KIND, false);
    }
    state_unlock(lock);
    return result;
}

/* Compute instances. */

static bool compute_size_fits(const struct kind *kind, unsigned size)
{
    unsigned slices = size < COMPUTE_SIZES ? compute_sizes[size] : SLICES + 1;
    return slices == kind->slices || (slices < kind->slices && !(slices == 3 && kind->slices == 4));
}

static unsigned multiprocessors(const struct kind *kind, const struct share *share, unsigned size)
{
    return share->multiprocessors / kind->slices * compute_sizes[size] +
           (compute_sizes[size] == kind->slices ? share->multiprocessors % kind->slices : 0);
}

static bool compute_free_at(const struct layout *layout, unsigned part, unsigned size, unsigned start)
{
    for (unsigned i = 0; i < layout->compute_count; i++) {
        const struct compute_part *other = &layout->computes[i];
        if (other->part == part && start < other->start + compute_sizes[other->size] &&
            other->start < start + compute_sizes[size])
            return false;
    }
    return true;
}

static bool place_compute(struct layout *layout, const struct gpu_part *part, unsigned size, int wanted)
{
    unsigned id = 0;
    while (compute_by_id(layout, part->id, id))
        id++;
    for (unsigned start = 0; start + compute_sizes[size] <= part->kind->slices; start++)
        if ((wanted < 0 || start == (unsigned)wanted) && compute_free_at(layout, part->id, size, start)) {
            layout->computes[layout->compute_count++] = (struct compute_part){part->id, id, size, start};
            return true;
        }
    return false;
}

EXPORT nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned size, unsigned engines,
                                                    nvmlComputeInstanceProfileInfo_t *out)
{
    struct layout layout;
    const struct gpu_part *part;
    struct share share;
    TRY(instance_check(instance, out, &layout, &part));
    if (engines != 0 || !compute_size_fits(part->kind, size) || !read_share(instance->device, part->kind, &share))
        return NVML_ERROR_NOT_SUPPORTED;
    *out = (nvmlComputeInstanceProfileInfo_t){
        size, compute_sizes[size], part->kind->slices / compute_sizes[size], multiprocessors(part->kind, &share, size),
        share.copy_engines, share.decoders, 0, share.jpeg, share.ofa,
    };
    return NVML_SUCCESS;
}

EXPORT nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned size, unsigned engines,
                                                     nvmlComputeInstanceProfileInfo_v3_t *out)
{
    struct layout layout;
    const struct gpu_part *part;
    struct share share;
    TRY(instance_check(instance, out, &layout, &part));
    TRY(nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, size, engines, &out->info));
    read_share(instance->device, part->kind, &share);
    if (out->info.sliceCount < part->kind->slices)
        snprintf(out->name, sizeof out->name, "MIG %uc.%s", out->info.sliceCount, share.name);
    else
        snprintf(out->name, sizeof out->name, "MIG %s", share.name);
    if (out->version >> 24 == 3)
        out->capabilities = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, unsigned size, unsigned *count)
{
    struct layout layout;
    const struct gpu_part *part;
    TRY(instance_check(instance, count, &layout, &part));
    if (!compute_size_fits(part->kind, size))
        return NVML_ERROR_NOT_SUPPORTED;
    for (*count = 0; place_compute(&layout, part, size, -1); ++*count)
        ;
    return NVML_SUCCESS;
}

EXPORT nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance, unsigned size,
                                                           nvmlPlacement_t *out, unsigned *count)
{
    struct layout layout;
    const struct gpu_part *part;
    unsigned found = 0;
    TRY(instance_check(instance, count, &layout, &part));
    if (!compute_size_fits(part->kind, size))
        return NVML_ERROR_NOT_SUPPORTED;
    for (unsigned start = 0; start + compute_sizes[size] <= part->kind->slices; start++, found++)
        if (out && found < *count)
            out[found] = (nvmlPlacement_t){start, compute_sizes[size]};
    *count = found;
    return NVML_SUCCESS;
}

static nvmlReturn_t create_compute(nvmlGpuInstance_t instance, unsigned size, int start, nvmlComputeInstance_t *out)
{
    struct layout layout;
    const struct gpu_part *part;
    int lock;
    TRY(instance_check(instance, out, &layout, &part));
    if (!compute_size_fits(part->kind, size))
        return NVML_ERROR_NOT_SUPPORTED;
    if (!state_lock(&lock))
        return NVML_ERROR_NO_PERMISSION;
    nvmlReturn_t result = instance_check(instance, out, &layout, &part);
    if (result == NVML_SUCCESS && !place_compute(&layout, part, size, start))
        result = NVML_ERROR_INSUFFICIENT_RESOURCES;
    if (result == NVML_SUCCESS && !write_layout(instance->device, &layout))
        result = NVML_ERROR_NO_PERMISSION;
    if (result == NVML_SUCCESS) {
        const struct compute_part *new = &layout.computes[layout.compute_count - 1];
        grant(instance->device, new->part, (int)new->id, true);
        *out = mig_handle(instance->device, new);
    }
    state_unlock(lock);
    return result;
}

EXPORT nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned size, nvmlComputeInstance_t *out)
{
    return create_compute(instance, size, -1, out);
}

EXPORT nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t instance, unsigned size,
                                                         const nvmlPlacement_t *placement, nvmlComputeInstance_t *out)
{
    return placement ? create_compute(instance, size, (int)placement->start, out) : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned size, nvmlComputeInstance_t *out,
                                          unsigned *count)
{
    struct layout layout;
    const struct gpu_part *part;
    TRY(instance_check(instance, count, &layout, &part));
    *count = 0;
    for (unsigned i = 0; out && i < layout.compute_count; i++)
        if (layout.computes[i].part == part->id && layout.computes[i].size == size)
            out[(*count)++] = mig_handle(instance->device, &layout.computes[i]);
    return NVML_SUCCESS;
}

EXPORT nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned id, nvmlComputeInstance_t *out)
{
    struct layout layout;
    const struct gpu_part *part;
    TRY(instance_check(instance, out, &layout, &part));
    const struct compute_part *compute = compute_by_id(&layout, part->id, id);
    if (!compute)
        return NVML_ERROR_NOT_FOUND;
    *out = mig_handle(instance->device, compute);
    return NVML_SUCCESS;
}

EXPORT nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *out)
{
    struct layout layout;
    const struct gpu_part *part;
    const struct compute_part *compute;
    if (!out || !lookup(instance, &layout, &part, &compute))
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = (nvmlComputeInstanceInfo_t){instance->parent, instance_handle(instance->parent, part->id), compute->id,
                                       compute->size, {compute->start, compute_sizes[compute->size]}};
    return NVML_SUCCESS;
}

ALIAS(nvmlComputeInstanceGetInfo, nvmlComputeInstanceGetInfo_v2);

EXPORT nvmlComputeInstanceDestroy(nvmlComputeInstance_t instance)
{
    struct layout layout;
    const struct gpu_part *part;
    const struct compute_part *compute;
    int lock;
    if (!lookup(instance, &layout, &part, &compute))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!state_lock(&lock))
        return NVML_ERROR_NO_PERMISSION;
    bool there = lookup(instance, &layout, &part, &compute);
    if (there) {
        layout.computes[compute - layout.computes] = layout.computes[layout.compute_count - 1];
        layout.compute_count--;
        there = write_layout(instance->parent, &layout);
        grant(instance->parent, instance->gpu_instance, (int)instance->compute_instance, false);
    }
    state_unlock(lock);
    return there ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* MIG devices: the compute instances that the caller may use, in order of GPU instance and compute instance. */

static nvmlDevice_t mig_at(struct device *device, unsigned index)
{
    struct layout layout;
    unsigned found = 0;
    read_layout(device, &layout);
    for (unsigned part = 0; part < GPU_INSTANCES; part++)
        for (unsigned id = 0; id < COMPUTE_INSTANCES; id++) {
            const struct compute_part *compute = compute_by_id(&layout, part, id);
            if (!compute || !granted(device, part, NO_KIND) || !granted(device, part, (int)id) || found++ != index)
                continue;
            nvmlDevice_t handle = mig_handle(device, compute);
            handle->index = (int)index;
            return handle;
        }
    return NULL;
}

nvmlDevice_t mig_find(const char *uuid)
{
    for (int i = 0; i < device_count(); i++) {
        nvmlDevice_t found;
        for (unsigned index = 0; (found = mig_at(device_at(i), index)); index++)
            if (strcmp(found->uuid, uuid) == 0)
                return found;
    }
    return NULL;
}

EXPORT nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *out)
{
    CHECK(device, out);
    if (!mig_enabled(device))
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlDevice_t found = mig_at(device, index);
    if (!found)
        return NVML_ERROR_NOT_FOUND;
    *out = found;
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *out)
{
    CHECK_EITHER(device, out);
    *out = device->parent != NULL;
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *out)
{
    CHECK_EITHER(device, out);
    *out = device->parent;
    return device->parent ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *out)
{
    CHECK_EITHER(device, out);
    *out = device->gpu_instance;
    return device->parent ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *out)
{
    CHECK_EITHER(device, out);
    *out = device->compute_instance;
    return device->parent ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
    struct layout layout;
    const struct gpu_part *part;
    const struct compute_part *compute;
    struct share share;
    CHECK_EITHER(device, out);
    if (!lookup(device, &layout, &part, &compute) || !read_share(device, part->kind, &share))
        return NVML_ERROR_NOT_SUPPORTED;
    *out = (nvmlDeviceAttributes_t){
        multiprocessors(part->kind, &share, compute->size), share.copy_engines, share.decoders, 0, share.jpeg,
        share.ofa, part->kind->slices, compute_sizes[compute->size], share.mebibytes,
    };
    return NVML_SUCCESS;
}

ALIAS(nvmlDeviceGetAttributes, nvmlDeviceGetAttributes_v2);
