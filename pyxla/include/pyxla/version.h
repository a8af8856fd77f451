// The version of pyxla's headers, for sources that are to build with several of them:
//
//   #if PYXLA_HEADERS_VERSION >= 2
//
// docs/concept/versions.md says when it grows. The build writes it into the manifest.
#pragma once

/** Of what the headers in pyxla/ offer and how they offer it. */
#define PYXLA_HEADERS_VERSION 1
