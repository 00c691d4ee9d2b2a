/*
 * The node's configuration, and two state files of the same format with later settings and faults. All are read again
 * when they change, so every process sees the settings of the others, and a fault can be injected into a running
 * program.
 */
#ifndef SIMULATED_CONFIG_H
#define SIMULATED_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

/* Links to all three, beside what a driver loads into a GPU, which NVIDIA's container tools mount into containers. */
#define LINKED(name) "/lib/firmware/nvidia/" DRIVER_VERSION "/gsp_simulated" name ".bin"
#define KEPT_STATE "/var/lib/simulated-nvml/state"  /* a device's own memory: it outlives a reboot */
#define STATE_DIRECTORY "/run/simulated-nvml"
#define STATE STATE_DIRECTORY "/state"              /* what a driver forgets when it is unloaded */
enum { CONFIG_VALUE = 160, NO_DEVICE = -1, ROOTED = 512 };

/*
 * Writes a path of the node's files as this process sees it, and returns it. A container may have the node's root in a
 * directory and load the library from there, as NVIDIA's device plugin does from /driver-root; then the files are there,
 * too.
 */
const char *rooted(const char *path, char place[ROOTED]);

int driver_branch(void); /* the first number of the version of the driver that is simulated */

/*
 * Copies the value of `key` for the device with this minor number into `value`: the line `key.minor=` if there is
 * one, else `key=`. False if there is neither, or if the value is `none`, which says that the model lacks the feature.
 */
bool config_text(int minor, const char *key, char value[CONFIG_VALUE]);

/* The same as a number (decimal, or hexadecimal with 0x); `value` is untouched when the result is false. */
bool config_number(int minor, const char *key, long *value);

/* The number, or `fallback` where the key is absent. */
long config_number_or(int minor, const char *key, long fallback);

/* True if the key has a line of its own for this device. */
bool config_has_own(int minor, const char *key);

/* Locks the state, for a change that depends on its content. False if the caller may not change it. */
bool state_lock(int *lock);
void state_unlock(int lock);

/* With the lock held: sets `key.minor=value` in a state file; NULL removes the line. */
bool state_write(const char *path, int minor, const char *key, const char *value);

#endif
