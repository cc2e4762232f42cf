// Everything.
#pragma once

#include "dlattn/attention.h"
#include "dlattn/error.h"
#include "dlattn/export.h"
#include "dlattn/params.h"
#include "dlattn/rotary.h"
#include "dlattn/runtime.h"
#include "dlattn/tensor_view.h"
#include "dlattn/version.h"
