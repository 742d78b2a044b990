/* proxycfg: the C ABI. */
#ifndef PROXYCFG_H
#define PROXYCFG_H

#include <stdint.h>

/* The version of the ABI that this header describes: major * 1000000 + minor * 1000 + patch. */
#define PROXYCFG_ABI_VERSION 1000

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the ABI that the library was built with. Callable from any thread, at any time. */
uint32_t proxycfg_abi_version(void);

#ifdef __cplusplus
}
#endif

#endif
