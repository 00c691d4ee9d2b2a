/* Where devices sit: NUMA nodes and CPUs of the machine, PCI Express switches, NVLink. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device.h"

enum { BITS = 8 * sizeof(unsigned long) };

/* Sets a bit for every number of a list such as "0-3,8" as sysfs writes it; returns the highest number or -1. */
static long read_list(const char *path, unsigned long *set, unsigned words)
{
    char text[1024];
    FILE *file = fopen(path, "re");
    char *at = file ? fgets(text, sizeof text, file) : NULL;
    long highest = -1;
    if (file)
        fclose(file);
    while (at && *at >= '0' && *at <= '9') {
        long first = strtol(at, &at, 10), last = first;
        if (*at == '-')
            last = strtol(at + 1, &at, 10);
        for (long i = first; i <= last && i < (long)(words * BITS); i++)
            set[i / (long)BITS] |= 1UL << (i % (long)BITS);
        highest = last;
        if (*at == ',')
            at++;
    }
    return highest;
}

/* The devices are dealt out evenly to the machine's NUMA nodes. */
static long numa_node(const struct device *device)
{
    unsigned long ignored[1] = {0};
    long nodes = read_list("/sys/devices/system/node/online", ignored, 1) + 1;
    long total = config_number_or(NO_DEVICE, "gpus", 1);
    return nodes > 1 ? device->minor * nodes / total : 0;
}

EXPORT nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned words, unsigned long *set)
{
    char path[64];
    CHECK(device, set);
    memset(set, 0, words * sizeof *set);
    snprintf(path, sizeof path, "/sys/devices/system/node/node%ld/cpulist", numa_node(device));
    if (read_list(path, set, words) < 0 && read_list("/sys/devices/system/cpu/online", set, words) < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned words, unsigned long *set,
                                           unsigned scope UNUSED)
{
    return nvmlDeviceGetCpuAffinity(device, words, set);
}

EXPORT nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *set, unsigned scope UNUSED)
{
    CHECK(device, set);
    long node = numa_node(device);
    memset(set, 0, words * sizeof *set);
    if (node / (long)BITS >= (long)words)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    set[node / (long)BITS] = 1UL << (node % (long)BITS);
    return NVML_SUCCESS;
}

static unsigned common_ancestor(const struct device *a, const struct device *b)
{
    long per_switch = config_number_or(NO_DEVICE, "pcie_switch_gpus", 1);
    if (a == b)
        return NVML_TOPOLOGY_INTERNAL;
    if (numa_node(a) != numa_node(b))
        return NVML_TOPOLOGY_SYSTEM;
    return per_switch > 0 && a->minor / per_switch == b->minor / per_switch ? NVML_TOPOLOGY_MULTIPLE
                                                                             : NVML_TOPOLOGY_NODE;
}

EXPORT nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, unsigned *level)
{
    CHECK(a, level);
    CHECK(b, level);
    *level = common_ancestor(a, b);
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned level, unsigned *count, nvmlDevice_t *out)
{
    unsigned found = 0;
    CHECK(device, count);
    for (int i = 0; i < device_count(); i++) {
        struct device *other = device_at(i);
        if (other == device || common_ancestor(device, other) != level)
            continue;
        if (out && found < *count)
            out[found] = other;
        found++;
    }
    *count = found;
    return NVML_SUCCESS;
}

EXPORT nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, nvmlDevice_t *out)
{
    unsigned found = 0;
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < device_count(); i++) {
        unsigned long set[64] = {0};
        if (cpu >= 64 * BITS || nvmlDeviceGetCpuAffinity(device_at(i), 64, set) != NVML_SUCCESS ||
            !(set[cpu / BITS] >> (cpu % BITS) & 1))
            continue;
        if (out && found < *count)
            out[found] = device_at(i);
        found++;
    }
    *count = found;
    return NVML_SUCCESS;
}

/*
 * NVLink. A profile says `nvlink_peers=switch` where all links end at NVSwitches, or per device, by minor number, where
 * each link ends (`nvlink_peers.0=1,2,3,3`). A link to a device that the node does not have is inactive.
 */
enum { NO_PEER = -1, SWITCHED = -2 };

bool device_switched(const struct device *device)
{
    char peers[CONFIG_VALUE];
    return config_text(device->minor, "nvlink_peers", peers) && strcmp(peers, "switch") == 0;
}

/* `nvlink_down` lists the links of a device that have failed. */
static bool link_failed(const struct device *device, unsigned link)
{
    char failed[CONFIG_VALUE], *at = failed;
    if (!config_text(device->minor, "nvlink_down", failed))
        return false;
    while (*at) {
        if (strtoul(at, &at, 10) == link)
            return true;
        at += *at == ',';
    }
    return false;
}

static int link_peer(const struct device *device, unsigned link)
{
    char peers[CONFIG_VALUE];
    if (link_failed(device, link))
        return NO_PEER;
    if (device_switched(device))
        return SWITCHED;
    if (!config_text(device->minor, "nvlink_peers", peers))
        return NO_PEER;
    char *at = peers;
    for (unsigned i = 0; *at; i++) {
        long peer = strtol(at, &at, 10);
        if (i == link)
            return peer < config_number_or(NO_DEVICE, "gpus", 0) ? (int)peer : NO_PEER;
        at += *at == ',';
    }
    return NO_PEER;
}

static nvmlReturn_t link_check(nvmlDevice_t device, unsigned link, const void *out)
{
    CHECK(device, out);
    if (link >= NVML_NVLINK_MAX_LINKS)
        return NVML_ERROR_INVALID_ARGUMENT;
    return link < (unsigned)config_number_or(device->minor, "nvlink_links", 0) ? NVML_SUCCESS
                                                                               : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active)
{
    nvmlReturn_t result = link_check(device, link, active);
    if (result == NVML_SUCCESS)
        *active = link_peer(device, link) != NO_PEER;
    return result;
}

EXPORT nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned link, unsigned *version)
{
    nvmlReturn_t result = link_check(device, link, version);
    return result == NVML_SUCCESS ? device_unsigned(device, "nvlink_version", version) : result;
}

EXPORT nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned link, unsigned capability, unsigned *out)
{
    enum { P2P_SUPPORTED, SYSMEM_ACCESS, P2P_ATOMICS, SYSMEM_ATOMICS, SLI_BRIDGE, VALID, COUNT };
    nvmlReturn_t result = link_check(device, link, out);
    if (result == NVML_SUCCESS)
        *out = capability != SLI_BRIDGE && capability < COUNT;
    return result;
}

/* The errors of any kind that a link has counted: those of `nvlink_errors`, if it is one that has failed. */
nvmlReturn_t link_errors(nvmlDevice_t device, unsigned link, unsigned long long *out)
{
    nvmlReturn_t result = link_check(device, link, out);
    if (result == NVML_SUCCESS)
        *out = link_failed(device, link) ? (unsigned long long)config_number_or(device->minor, "nvlink_errors", 0) : 0;
    return result;
}

EXPORT nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned link, unsigned counter UNUSED,
                                       unsigned long long *out)
{
    return link_errors(device, link, out);
}

EXPORT nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, unsigned *type)
{
    nvmlReturn_t result = link_check(device, link, type);
    if (result == NVML_SUCCESS)
        *type = link_peer(device, link) == SWITCHED ? NVML_NVLINK_REMOTE_SWITCH : NVML_NVLINK_REMOTE_GPU;
    return result;
}

/* The six NVSwitches of an HGX board sit on the buses C1 to C6 here; the links are spread over them. */
EXPORT nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *out)
{
    enum { SWITCHES = 6, FIRST_BUS = 0xC1, SWITCH_DEVICE_ID = 0x1AF110DE };
    nvmlReturn_t result = link_check(device, link, out);
    if (result != NVML_SUCCESS)
        return result;
    memset(out, 0, sizeof *out);
    int peer = link_peer(device, link);
    if (peer == NO_PEER)
        return NVML_ERROR_NOT_SUPPORTED;
    if (peer == SWITCHED) {
        out->bus = FIRST_BUS + link % SWITCHES;
        out->pciDeviceId = SWITCH_DEVICE_ID;
    } else {
        /* The bus of a peer is known even where this process may not open it. */
        out->bus = device_bus(peer, &out->domain);
        out->pciDeviceId = (unsigned)config_number_or(peer, "pci_device_id", 0);
    }
    snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%04X:%02X:00.0", out->domain & 0xffff, out->bus & 0xff);
    snprintf(out->busId, sizeof out->busId, "%08X:%02X:00.0", out->domain, out->bus);
    return NVML_SUCCESS;
}

ALIAS(nvmlDeviceGetNvLinkRemotePciInfo, nvmlDeviceGetNvLinkRemotePciInfo_v2);

static bool linked(const struct device *a, const struct device *b)
{
    long links = config_number_or(a->minor, "nvlink_links", 0);
    for (long link = 0; link < links; link++) {
        int peer = link_peer(a, (unsigned)link);
        if (peer == SWITCHED || peer == b->minor)
            return true;
    }
    return false;
}

EXPORT nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, unsigned capability, unsigned *status)
{
    CHECK(a, status);
    CHECK(b, status);
    bool nvlink = linked(a, b);
    bool pcie = common_ancestor(a, b) < NVML_TOPOLOGY_SYSTEM;
    bool able = capability == NVML_P2P_PCI                                       ? pcie
                : capability == NVML_P2P_NVLINK || capability == NVML_P2P_ATOMICS ? nvlink
                                                                                 : nvlink || pcie;
    *status = able ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

/* The NVLink fabric of Hopper and later, which a fabric manager brings up. */

static unsigned char fabric_state(const struct device *device)
{
    bool fabric = device_switched(device) && config_number_or(device->minor, "architecture", 0) >= NVML_ARCH_HOPPER;
    return fabric ? (unsigned char)config_number_or(device->minor, "fabric_state", NVML_FABRIC_STATE_COMPLETED)
                  : NVML_FABRIC_STATE_NOT_SUPPORTED;
}

EXPORT nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *out)
{
    CHECK(device, out);
    *out = (nvmlGpuFabricInfo_t){.status = NVML_SUCCESS, .state = fabric_state(device)};
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *out)
{
    CHECK(device, out);
    TRY(nvmlDeviceGetGpuFabricInfo(device, &out->info));
    if (out->version >> 24 >= 2)
        out->healthMask = fabric_state(device) ? (unsigned)config_number_or(device->minor, "fabric_health", 0) : 0;
    return NVML_SUCCESS;
}
