/* The node's configuration: /etc/simulated-nvml.conf, the only input of this library. */
#ifndef SIMULATED_CONFIG_H
#define SIMULATED_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

/* A link to it, where NVIDIA's container tools look for what a driver loads into a GPU, and mount it into containers. */
#define CONFIG_PATH "/lib/firmware/nvidia/" DRIVER_VERSION "/gsp_simulated.bin"
enum { CONFIG_VALUE = 160, NO_DEVICE = -1 };

/*
 * Copies the value of `key` for the device with this minor number into `value`: the line `key.minor=` if there is
 * one, else `key=`. False if there is neither, or if the value is `none`, which says that the model lacks the feature.
 * The file is read again when it has changed, so a fault can be injected into a running program.
 */
bool config_text(int minor, const char *key, char value[CONFIG_VALUE]);

/* The same as a number (decimal, or hexadecimal with 0x); `value` is untouched when the result is false. */
bool config_number(int minor, const char *key, long *value);

/* The number, or `fallback` where the key is absent. */
long config_number_or(int minor, const char *key, long fallback);

/* True if the key has a line of its own for this device. */
bool config_has_own(int minor, const char *key);

#endif
