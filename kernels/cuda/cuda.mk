# The CUDA backend and the device that stands in for a GPU; included by the Makefile.
#
#   make CUDA=1                      the server for a GPU, in build/cuda/
#   make CUDA=1 unit                 its unit tests, on the stand-in: build/cuda/standin/
#   make DEVICE=cuda-on-cpu SAN=...  the same sources past nvcc's code generator, for
#                                    sanitizers and gdb, in build/cuda-on-cpu.../
#
# The toolkit is the one whose nvcc is on the PATH, else what `make cuda-toolkit` made.

CUDA_VENV := build/venv-cuda
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(firstword $(realpath $(shell command -v nvcc 2>/dev/null)) \
    $(wildcard $(CUDA_VENV)/lib/python3*/site-packages/nvidia/cu13/bin/nvcc)))
CUDA_LIB   = $(firstword $(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/lib))
NVCC       = $(CUDA_HOME)/bin/nvcc

ifneq ($(DEVICE),cpu)
ifeq ($(CUDA_HOME),)
$(error there is no nvcc on the PATH; `make cuda-toolkit` gets one into build/)
endif
ALL_CFLAGS += -DHAVE_CUDA $(if $(filter %-on-cpu,$(DEVICE)),-DCUDA_ON_CPU) \
              -isystem $(CUDA_HOME)/include
endif

# ---- the kernels -------------------------------------------------------------

# Code for each of these, and PTX of the last for what comes after it.  Neither fast math
# nor contraction: which operations are fused is written in the kernels, as on the CPU.
CUDA_ARCHS := 80 86 90 100
CUDA_NEXT  := $(lastword $(CUDA_ARCHS))
GENCODE    := $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$a,code=sm_$a) \
              -gencode arch=compute_$(CUDA_NEXT),code=compute_$(CUDA_NEXT)
NVCC_FLAGS  = -std=c++17 -O3 -I. --fmad=false -lineinfo -Werror all-warnings \
              -Xcompiler -Wall,-Wextra,-Werror,-fno-exceptions

ifeq ($(DEVICE),cuda)
$(BUILD)/%.cu.o: %.cu
	$(say) NVCC $<
	@mkdir -p $(@D)
	$(Q)$(NVCC) $(NVCC_FLAGS) $(GENCODE) -t 2 -MMD -MF $(@:.o=.d) -MT $@ -c $< -o $@

CUDA_LIBS   = -L$(CUDA_LIB) -l:libcublas.so.13 -l:libcudart.so.13 -lstdc++ \
              -Wl,--enable-new-dtags,-rpath,$(abspath $(CUDA_LIB))
endif

# The source tier: C++ as any compiler reads it.  Pointer casts are CUDA's own way to see
# bits, hence -fno-strict-aliasing.
ifeq ($(DEVICE),cuda-on-cpu)
CXX_FLAGS   = -std=c++17 -x c++ -D_GNU_SOURCE -DCUDA_ON_CPU -I. -isystem $(CUDA_HOME)/include \
              -Wall -Wextra -Wno-unknown-pragmas -Werror $(OPT) -g -pthread -fno-exceptions \
              -fno-strict-aliasing -mavx2 -mfma -mf16c \
              $(SANFLAGS) $(if $(SAN),-fno-sanitize=vptr)

$(BUILD)/%.cu.o: %.cu
	$(say) CXX $<
	@mkdir -p $(@D)
	$(Q)$(CXX) $(CXX_FLAGS) -MMD -MP -MF $(@:.o=.d) -MT $@ -c $< -o $@

STANDIN_LIB = $(BUILD)/libstandin.a
CUDA_LIBS   = -ldl -lstdc++
endif

# ---- the stand-in: libcudart.so.13, libcublas.so.13, kernels.so ---------------
# It is never instrumented: sanitizers watch the program, and are told what the device does.

STANDIN     := $(BUILD)/standin
STANDIN_SRC := $(filter-out %/cublas.c $(wildcard tests/cuda_on_cpu/test_*.c),$(wildcard tests/cuda_on_cpu/*.c))
STANDIN_OBJ := $(patsubst %,$(BUILD)/%.o,$(STANDIN_SRC) tests/cuda_on_cpu/cublas.c)
$(STANDIN_OBJ): SANFLAGS :=
$(STANDIN_OBJ): OPT := -O3 -ffp-contract=off -fPIC -mavx2 -mfma -mf16c

$(BUILD)/libstandin.a: $(STANDIN_OBJ)
	$(say) AR $@
	$(Q)rm -f $@ && ar rcs $@ $^

$(STANDIN)/libcudart.so.13: $(patsubst %,$(BUILD)/%.o,$(STANDIN_SRC))
$(STANDIN)/libcublas.so.13: $(BUILD)/tests/cuda_on_cpu/cublas.c.o $(STANDIN)/libcudart.so.13
$(STANDIN)/lib%.so.13:
	$(say) LINK $@
	@mkdir -p $(@D)
	$(Q)echo '$(@F) { *; };' >$@.map  # programs ask for this version of every function
	$(Q)$(CC) -shared -Wl,-Bsymbolic-functions,-soname,$(@F),--version-script,$@.map $^ -pthread -ldl -o $@

# Kernels as nvcc wrote them, in PTX, translated to C.
$(STANDIN)/%.ptx: %.cu
	$(say) PTX $<
	@mkdir -p $(@D)
	$(Q)$(NVCC) $(NVCC_FLAGS) -arch=compute_80 -ptx -MMD -MF $(@:.ptx=.d) -MT $@ $< -o $@
$(STANDIN)/%.ptx.c: $(STANDIN)/%.ptx tests/cuda_on_cpu/ptx2c.py tests/cuda_on_cpu/ptx_ops.py
	$(Q)tests/cuda_on_cpu/ptx2c.py $< >$@
$(STANDIN)/%.ptx.o: $(STANDIN)/%.ptx.c tests/cuda_on_cpu/ptx.h tests/cuda_on_cpu/device.h
	$(say) CC $<
	$(Q)$(CC) -std=gnu17 -O1 -fPIC -I. -ffp-contract=off -fno-strict-aliasing -mavx2 -mfma \
	    -mf16c -c $< -o $@

PTX_OF = $(patsubst %.cu,$(STANDIN)/%.ptx.o,$1)
$(STANDIN)/kernels.so: $(call PTX_OF,$(wildcard kernels/cuda/*.cu))
$(STANDIN)/planted.so: $(call PTX_OF,tests/cuda_on_cpu/planted.cu)
$(STANDIN)/%.so:
	$(say) LINK $@
	$(Q)$(CC) -shared -Wl,-Bsymbolic $^ -lm -o $@


# Unit tests of a CUDA build run on the stand-in; `make CUDA=1 GPU=1 unit` on a GPU.
ifneq ($(DEVICE),cpu)
STANDIN_TESTS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/cuda_on_cpu/test_*.c))
endif
ifeq ($(DEVICE)$(GPU),cuda)
STANDIN_SO := $(addprefix $(STANDIN)/,libcudart.so.13 libcublas.so.13 kernels.so planted.so)
ON_STANDIN := LD_LIBRARY_PATH=$(STANDIN)
endif
standin: $(STANDIN_SO)

$(BUILD)/tests/cuda_on_cpu/test_%: $(BUILD)/tests/cuda_on_cpu/test_%.c.o \
    $(BUILD)/tests/cuda_on_cpu/planted.cu.o $(STANDIN_LIB)
	$(say) LINK $@
	$(Q)$(CC) $^ $(ALL_LDFLAGS) -lcmocka $(CUDA_LIBS) $(LDLIBS) -o $@

# What says something about CUDA, as T= takes it; and of that what sanitizers see in minutes,
# in the source tier, which is there for them.
test_names   = $(subst /test_,/,$(patsubst tests/%.c,%,$1))
CUDA_TESTS  := $(call test_names,$(wildcard tests/cuda_on_cpu/test_*.c tests/*/test_*cuda*.c) \
    tests/model/test_exact.c tests/model/test_forward.c)
CUDA_WATCHED := $(call test_names,$(wildcard tests/cuda_on_cpu/test_*.c tests/kernels/test_cuda_*.c) \
    tests/model/test_cuda_steps.c $(wildcard tests/server/test_engine_cuda*.c))
CUDA_TIER   := $(if $(SAN),cuda-on-cpu-$(subst $(comma),-,$(SAN)),cuda)

NO_CUDA := CUDA is skipped: there is no nvcc on the PATH, and `make cuda-toolkit` was not asked

cuda-test: ## the tests of the CUDA backend, on the stand-in
ifeq ($(CUDA_HOME),)
	@echo '$(NO_CUDA)'
	@echo "0 passed, 0 failed, 1 skipped"
else
	@$(MAKE) --no-print-directory -j$$(nproc) DEVICE=cuda$(if $(SAN),-on-cpu) BUILD=build/$(CUDA_TIER) \
	    unit T="$(if $(SAN),$(CUDA_WATCHED),$(CUDA_TESTS))"
endif

cuda-e2e: $(E2E_VENV)/ready ## the tiny models' texts, and more, from a server on the stand-in
ifeq ($(CUDA_HOME),)
	@echo '$(NO_CUDA)'
	@echo "0 passed, 0 failed, 1 skipped"
else
	@$(MAKE) --no-print-directory -j$$(nproc) CUDA=1 BUILD=build/cuda all standin
	@DORMOUSE_DEVICE=cuda LD_LIBRARY_PATH=$(abspath build/cuda/standin) \
	    tests/e2e/run.sh build/cuda/dormouse -k "recorded_texts and not 16k or how_far or device_memory"
endif

cuda-faults: ## deliberate bugs in the CUDA backend, each of which its tests must catch; T=words picks some
ifeq ($(CUDA_HOME),)
	@echo '$(NO_CUDA)'
	@echo "0 passed, 0 failed, 1 skipped"
else
	@tests/cuda_on_cpu/faults.py $(T)
endif

# What a machine with a GPU is to be asked once; ARGS=--standin proves the script without one.
# The model of `make model` is not needed; where it is there, its goldens are asked for, too.
GPU_TESTS    = $(shell tests/load/gpu_check.py --list $(ARGS))
GPU_PROGRAMS = $(addprefix build/cuda/,dormouse tests/bench_cuda \
    $(foreach t,$(GPU_TESTS),tests/$(dir $t)test_$(notdir $t)))
gpu-check: ## nine minutes on a GPU: goldens, shares of its limits, waking; ARGS=--standin for a try without
	@$(MAKE) --no-print-directory -j$$(nproc) CUDA=1 BUILD=build/cuda $(GPU_PROGRAMS) $(if $(filter --standin,$(ARGS)),standin)
	@tests/load/gpu_check.py build/cuda $(ARGS)
gpu-kit: ## what gpu-check needs, in build/gpu-kit.tar.xz, for a machine that can build nothing
	@$(MAKE) --no-print-directory -j$$(nproc) CUDA=1 BUILD=build/cuda $(GPU_PROGRAMS)
	@tests/load/gpu_kit.sh build/cuda build/gpu-kit $(GPU_PROGRAMS)

# ---- what the kernels cost ---------------------------------------------------
# cuobjdump, which calls nvdisasm, is not part of every toolkit.

CUOBJDUMP = $(firstword $(wildcard $(CUDA_HOME)/bin/cuobjdump) $(CUDA_VENV)/cuobjdump)
$(CUDA_VENV)/cuobjdump:
	@python3 -m venv $(CUDA_VENV)
	@$(CUDA_VENV)/bin/python -m pip install --disable-pip-version-check --quiet \
	    $(shell grep -E 'cuobjdump|nvdisasm' kernels/cuda/requirements.txt)
	@cd $(@D) && ln -sf lib/python3*/site-packages/nvidia/cu13/bin/cuobjdump $(@F)

cuda-report: $(if $(CUDA_HOME),$(CUOBJDUMP)) ## registers, spills, instructions and occupancy of the kernels
ifeq ($(CUDA_HOME),)
	@echo '$(NO_CUDA)'
	@echo "0 passed, 0 failed, 1 skipped"
else
	@kernels/cuda/report.py $(NVCC) $(CUOBJDUMP) build/cuda-report $(CUDA_ARCHS) -- $(NVCC_FLAGS)
endif

.PHONY: standin gpu-check gpu-kit cuda-test cuda-e2e cuda-faults cuda-report cuda-toolkit

# ---- the toolkit -------------------------------------------------------------

cuda-toolkit: ## get nvcc into build/ where there is none (1 GB), and the compiler beneath it
	$(call install_debs,g++)
	$(if $(CUDA_HOME),@echo "CUDA's toolkit is in $(CUDA_HOME)",@$(MAKE) --no-print-directory $(CUDA_VENV)/ready)
$(CUDA_VENV)/ready: kernels/cuda/requirements.txt
	@echo "making a Python environment in $(CUDA_VENV) for CUDA's toolkit"
	@python3 -m venv $(CUDA_VENV)
	@$(CUDA_VENV)/bin/python -m pip install --disable-pip-version-check --quiet -r $<
	@touch $@
