// Symbol visibility of the library.
#pragma once

#if defined(_WIN32)
#if defined(DLATTN_BUILDING_SHARED)
#define DLATTN_EXPORT __declspec(dllexport)
#elif defined(DLATTN_USING_SHARED)
#define DLATTN_EXPORT __declspec(dllimport)
#else
#define DLATTN_EXPORT
#endif
#else
#define DLATTN_EXPORT __attribute__((visibility("default")))
#endif
