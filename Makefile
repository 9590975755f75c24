# Builds, runs and tests dormouse.  `make help` lists what there is.
#
#   make run                         from an empty folder to a conversation
#   make                             the server, optimized, into build/cpu/
#   make SAN=address,undefined test  everything sanitized, in build/cpu-address-undefined/
#   make CC=clang BUILD=build/clang  another compiler, in a directory of its own
#   make CUDA=1                      with the CUDA backend, into build/cuda/ (kernels/cuda/cuda.mk)
#
# Every combination of switches has its own directory, so none ever mixes.

CUDA   ?= 0
DEVICE ?= $(if $(filter 1,$(CUDA)),cuda,cpu)
SAN    ?=
DEBUG  ?= 0
WERROR ?= 1

comma  := ,
empty  :=
space  := $(empty) $(empty)
FLAVOR := $(DEVICE)$(if $(filter 1,$(DEBUG)),-debug)$(if $(SAN),-$(subst $(comma),-,$(SAN)))
BUILD  ?= build/$(FLAVOR)

# ---- toolchain ---------------------------------------------------------------

CC           ?= cc
CLANG        ?= clang
CLANG_FORMAT ?= clang-format
PKG_CONFIG   ?= pkg-config
OBJCOPY      ?= objcopy

WARN := -Wall -Wextra -Wshadow -Wpointer-arith -Wundef -Wvla -Wformat=2 \
        -Wstrict-prototypes -Wmissing-prototypes $(if $(filter 1,$(WERROR)),-Werror)
# No contraction: which operations are fused is written in the kernels, not chosen by
# the compiler, so that every path computes the same bits wherever it is compiled.
OPT  := $(if $(filter 1,$(DEBUG))$(SAN),-O1 -fno-omit-frame-pointer,-O3) -ffp-contract=off
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all)

# CFLAGS and LDFLAGS stay the user's; what the project needs is kept apart.
CFLAGS     ?= -g
ALL_CFLAGS  = -std=c17 -D_GNU_SOURCE -I. $(WARN) $(OPT) $(SANFLAGS) -pthread $(CFLAGS)
ALL_LDFLAGS = $(SANFLAGS) -pthread $(LDFLAGS)
LDLIBS     += -lm

# ---- dependencies ------------------------------------------------------------

PKGS      := libmicrohttpd libcjson libpcre2-8 libutf8proc inih libsodium libxxhash liburing
RUN_DEBS  := pkg-config python3-venv libjsmn-dev libmicrohttpd-dev libcjson-dev libpcre2-dev \
             libutf8proc-dev libinih-dev libsodium-dev libxxhash-dev liburing-dev
TEST_DEBS := $(RUN_DEBS) libcmocka-dev libsimde-dev clang clang-format libclang-rt-14-dev curl

# Asked once, when first needed: after `make deps` has had its chance.
PKG_CFLAGS = $(eval PKG_CFLAGS := $$(shell $$(PKG_CONFIG) --cflags $$(PKGS)))$(PKG_CFLAGS)
PKG_LIBS   = $(eval PKG_LIBS := $$(shell $$(PKG_CONFIG) --libs $$(PKGS)))$(PKG_LIBS)

# Python environments of the tests.
E2E_VENV     := build/venv-e2e
CLIENTS_VENV := build/venv-clients

# ---- the device --------------------------------------------------------------

.DEFAULT_GOAL := all
include kernels/cuda/cuda.mk

# ---- what is built -----------------------------------------------------------
# A room may use the rooms named here and no others; `make layers` checks the includes,
# and a room's tests link against just these.

ROOMS          := kernels tokenizer model offload server
SEES_kernels   := kernels
SEES_tokenizer := tokenizer kernels
SEES_model     := model kernels
SEES_offload   := offload kernels
SEES_server    := server model offload tokenizer kernels

src_of   = $(filter-out server/main.c $(if $(filter cpu,$(DEVICE)),kernels/cuda/%), \
               $(wildcard $1/*.c $1/*/*.c $1/cuda/*.cu))
obj_of   = $(patsubst %,$(BUILD)/%.o,$(call src_of,$1))
libs_of  = $(foreach r,$(SEES_$1),$(if $(call src_of,$r),$(BUILD)/lib$r.a)) $(STANDIN_LIB)
# Of a build without CUDA the tests of CUDA alone could only skip: `make test` runs them by
# cuda-test, where there is an nvcc.
tests_of = $(patsubst tests/%.c,$(BUILD)/tests/%,$(filter-out \
               $(if $(filter cpu,$(DEVICE)),tests/$1/test_cuda_% tests/$1/test_engine_cuda%), \
               $(wildcard tests/$1/test_*.c)))

SERVER  := $(BUILD)/dormouse
TESTS   := $(foreach r,$(ROOMS),$(call tests_of,$r)) $(STANDIN_TESTS)
FUZZERS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/fuzz/fuzz_*.c))
BENCHES := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/bench_*.c))
BENCH_HELPERS := tests/machine.c tests/gpu_bench.c
HELPERS := $(patsubst %,$(BUILD)/%.o,$(filter-out tests/bench_% $(BENCH_HELPERS),$(wildcard tests/*.c)))
COUNT_ALLOCS := $(foreach f,malloc calloc realloc aligned_alloc strdup,-Wl,--wrap=$(f))

include tests/emulated/emulated.mk

all: $(SERVER) ## build the server (default)

$(SERVER): $(BUILD)/server/main.c.o $(call libs_of,server)
	$(say) LINK $@
	$(Q)$(CC) $^ $(ALL_LDFLAGS) $(PKG_LIBS) $(CUDA_LIBS) $(LDLIBS) -o $@

define room_rules
$(BUILD)/lib$1.a: $(call obj_of,$1)
	$$(say) AR $$@
	$$(Q)rm -f $$@ && ar rcs $$@ $$^

$(BUILD)/tests/$1/test_%: $(BUILD)/tests/$1/test_%.c.o $(HELPERS) $(EMULATED_OBJS_$1) $(call libs_of,$1)
	$$(say) LINK $$@
	$$(Q)$$(CC) $$^ $$(ALL_LDFLAGS) $(COUNT_ALLOCS) $(EMULATED_LINK_$1) $$(PKG_LIBS) -lcmocka $(CUDA_LIBS) $$(LDLIBS) -o $$@
endef
$(foreach r,$(ROOMS),$(eval $(call room_rules,$r)))

# A server whose blocks have names of 8 bits, for the end-to-end tests alone.
WEAK_NAMES := $(BUILD)/tests/e2e/dormouse-weak-names
$(WEAK_NAMES): $(BUILD)/server/main.c.o $(BUILD)/tests/e2e/weak_names.c.o $(call libs_of,server)
	$(say) LINK $@
	$(Q)$(CC) $^ $(ALL_LDFLAGS) -Wl,--wrap=block_meta_next $(PKG_LIBS) $(CUDA_LIBS) $(LDLIBS) -o $@

$(BUILD)/tests/bench_%: $(BUILD)/tests/bench_%.c.o $(HELPERS) $(BENCH_HELPERS:%=$(BUILD)/%.o) $(call libs_of,server)
	$(say) LINK $@
	$(Q)$(CC) $^ $(ALL_LDFLAGS) $(COUNT_ALLOCS) $(PKG_LIBS) $(CUDA_LIBS) $(LDLIBS) -o $@

# The instruction set is asked for file by file; cpu_open chooses among them at run time.
AVX2   := -mavx2 -mfma -mf16c
AVX512 := $(AVX2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
AVX512BF16 := $(AVX512) -mavx512bf16

# Fuzzers share objects of their own: clang's, watched for coverage.
FUZZ_FLAGS = -std=c17 -D_GNU_SOURCE -I. -g -O1 -ffp-contract=off -pthread \
             -Wall -Wextra -Werror -fno-sanitize-recover=all
FUZZ_OBJS := $(foreach r,$(ROOMS),$(patsubst %,$(BUILD)/fuzz/%.o, \
                 $(filter-out kernels/cuda/%,$(call src_of,$r))))

$(BUILD)/fuzz/kernels/cpu/%_avx2.c.o: FUZZ_FLAGS += $(AVX2)
$(BUILD)/fuzz/kernels/cpu/%_avx512.c.o: FUZZ_FLAGS += $(AVX512)
$(BUILD)/fuzz/kernels/cpu/%_avx512bf16.c.o: FUZZ_FLAGS += $(AVX512BF16)
$(BUILD)/fuzz/%.c.o: %.c
	$(say) FUZZ $<
	@mkdir -p $(@D)
	$(Q)$(CLANG) $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link,address,undefined $(PKG_CFLAGS) \
	    -MMD -MP -c $< -o $@

$(BUILD)/tests/fuzz/fuzz_%: $(BUILD)/fuzz/tests/fuzz/fuzz_%.c.o $(FUZZ_OBJS)
	$(say) LINK $@
	@mkdir -p $(@D)
	$(Q)$(CLANG) $(FUZZ_FLAGS) -fsanitize=fuzzer,address,undefined $^ $(PKG_LIBS) $(LDLIBS) -o $@

$(BUILD)/tests/fuzz/fuzz_kvstore $(BUILD)/tests/fuzz/fuzz_names: LDLIBS += -lcmocka

$(BUILD)/kernels/cpu/%_avx2.c.o: ALL_CFLAGS += $(AVX2)
$(BUILD)/kernels/cpu/%_avx512.c.o: ALL_CFLAGS += $(AVX512)
$(BUILD)/kernels/cpu/%_avx512bf16.c.o: ALL_CFLAGS += $(AVX512BF16)
# The one load and one product of a step's shortest loop take twice as long where it crosses a cache
# line of code (seen on a Zen 4).
$(BUILD)/kernels/cpu/path_%.c.o: ALL_CFLAGS += -falign-loops=64

$(BUILD)/%.c.o: %.c
	$(say) CC $<
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) $(CPPFLAGS) $(PKG_CFLAGS) -MMD -MP -c $< -o $@

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

# ---- from an empty folder to a conversation ----------------------------------

MODEL ?= models/smollm2-135m-instruct
VENV  := build/venv

run: deps ## install what is missing, get the model, build, serve; ARGS="--port 9000 ..."
	@$(MAKE) --no-print-directory $(if $(V),,-s) -j$$(nproc) $(MODEL) all
	$(Q)exec $(SERVER) serve $(MODEL) $(ARGS)

deps: ## install the Debian packages that a build needs
	$(call install_debs,$(RUN_DEBS))
deps-test: ## and those that the tests need
	$(call install_debs,$(TEST_DEBS))

GETS  := models/smollm2-135m-instruct

$(filter-out $(GETS),$(MODEL)):
	@echo "MODEL=$@: there is no such folder; models.example/ says how to get a model" >&2
	@exit 1

model: $(GETS) ## get SmolLM2-135M-Instruct into models/

$(GETS): | $(VENV)/numpy
	@models.example/smollm2-135m-instruct/get.sh $@ $(VENV)/bin/python

# Python packages live in environments under build/ and nowhere else.
$(VENV)/numpy:
	@echo "making a Python environment in $(VENV) for the conversion"
	@python3 -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --disable-pip-version-check --quiet numpy
	@touch $@

# Debian packages are installed where that asks nothing of anybody; else the one line
# to type is printed.
define install_debs
@missing=; for p in $1; do \
    dpkg-query -W -f='$${db:Status-Status}\n' $$p 2>/dev/null | grep -qx installed \
        || missing="$$missing $$p"; \
done; \
test -z "$$missing" && exit 0; \
if [ "$$(id -u)" = 0 ]; then as=; elif sudo -n true 2>/dev/null; then as=sudo; else \
    echo "Debian packages are missing; please type:"; \
    echo "    sudo apt-get install$$missing"; \
    exit 1; \
fi; \
echo "installing$$missing"; \
$$as apt-get update -q && $$as env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends $$missing
endef

# ---- checks ------------------------------------------------------------------

test: deps-test ## everything: unit and end-to-end tests, layers, headers, style
	@$(MAKE) --no-print-directory -j$$(nproc) model all $(TESTS) $(WEAK_NAMES) $(E2E_VENV)/ready $(CLIENTS_VENV)/ready
	@tests/all.sh $(BUILD)

$(E2E_VENV)/ready: tests/e2e/requirements.txt
	@echo "making a Python environment in $(E2E_VENV) for the end-to-end tests"
	@python3 -m venv $(E2E_VENV)
	@$(E2E_VENV)/bin/python -m pip install --disable-pip-version-check --quiet uv
	@$(E2E_VENV)/bin/uv pip install --quiet --python $(E2E_VENV)/bin/python -r $<
	@touch $@

# Other people's clients, apart: they disagree about versions.
$(CLIENTS_VENV)/ready: tests/e2e/requirements-clients.txt $(E2E_VENV)/ready
	@echo "making a Python environment in $(CLIENTS_VENV) for other clients"
	@python3 -m venv $(CLIENTS_VENV)
	@$(E2E_VENV)/bin/uv pip install --quiet --python $(CLIENTS_VENV)/bin/python -r $<
	@touch $@

e2e: $(SERVER) $(WEAK_NAMES) $(E2E_VENV)/ready $(CLIENTS_VENV)/ready ## the end-to-end tests; T=expression picks some
	@tests/e2e/run.sh $(SERVER) $(if $(T),-k "$(T)")

storms: $(SERVER) $(WEAK_NAMES) $(E2E_VENV)/ready ## the long proofs of sleep: damage, faults, kills, many sleepers
	@STORMS=1 tests/e2e/run.sh $(SERVER) -k "damage or kill or sleepers or offload or faults or tenants or storm"

# A program that starts no thread has no race: ThreadSanitizer is given the others.
CHOSEN := $(if $(T),$(foreach t,$(T),$(BUILD)/tests/$(dir $t)test_$(notdir $t)),$(TESTS))
unit: $(CHOSEN) $(STANDIN_SO) ## the unit tests; T=room/name runs one program
	@$(ON_STANDIN) tests/run.sh $(if $(T),$(CHOSEN),$(if $(filter thread,$(SAN)),$$(tests/threaded.sh $(CHOSEN)),$(CHOSEN)))

# What strangers send is fuzzed for FUZZ_SECONDS, the rest for a quarter of that.
FUZZ_SECONDS ?= 60
fuzzers: $(FUZZERS) ## build the fuzzers
fuzz: $(FUZZERS) ## run each fuzzer for FUZZ_SECONDS (default 60) or a quarter of that
	@tests/fuzz/run.sh $(FUZZ_SECONDS) $(FUZZERS)

bench: $(BENCHES) ## speeds beside the machine's limits
	@for b in $(BENCHES); do $$b || exit 1; done

bench-loss: $(MODEL) $(BUILD)/tests/bench_loss ## what int8 and int4 weights lose; MODEL=DIR TEXT=FILE
	@$(BUILD)/tests/bench_loss $(MODEL) $(TEXT)

bench-wake: model $(SERVER) ## time to wake from each tier, and who notices; ARGS="--quick"
	@tests/load/bench_wake.py $(SERVER) $(MODEL) $(ARGS)

bench-lookup: model $(SERVER) ## what prompt lookup gains, and where it gains nothing; ARGS="--at-once 1"
	@tests/load/bench_lookup.py $(SERVER) $(MODEL) $(ARGS)

bench-replay: model $(SERVER) ## conversations that return, over a KV pool that holds 4; REPLAY_TARGET=URL for another server
	@tests/load/bench_replay.sh $(SERVER) $(MODEL) $(ARGS)

bench-peer: model $(BUILD)/tests/bench_model ## beside llama.cpp: LLAMA=its build directory GGUF="files of the same weights"
	@test -n "$(LLAMA)" && test -n "$(GGUF)" || { \
	    echo "make bench-peer needs LLAMA=DIR, a build of llama.cpp, and GGUF=\"FILE...\""; exit 2; }
	@tests/load/bench_peer.py $(BUILD)/tests/bench_model $(LLAMA) $(MODEL) $(GGUF) $(ARGS)

layers: $(addprefix layer-,$(ROOMS)) ## check that no room includes one above it
layer-%:
	@! grep -n '^#include "' /dev/null $(wildcard $*/*.[ch] $*/*/*.[ch]) \
	    | grep -vE '"($(subst $(space),|,$(SEES_$*)))/'

# C++ headers are left out, and without CUDA those that need it.
HEADERS = $(filter-out $(if $(filter cpu,$(DEVICE)),kernels/cuda/% tests/cuda_on_cpu/%) %/gpu.h \
              kernels/cuda/attention.h tests/cuda_on_cpu/source.h tests/cuda_on_cpu/ptx.h, \
              $(wildcard */*.h */*/*.h))
headers: ## check that every header compiles by itself
	@printf '%s\n' $(HEADERS) | xargs -P $$(nproc) -I{} \
	    $(CC) $(ALL_CFLAGS) $(PKG_CFLAGS) -Wno-unused-function -fsyntax-only -include {} -x c /dev/null

FORMATTED := $(wildcard */*.[ch] */*/*.[ch] */*/*.cu)
format: ## rewrite the sources in the house style
	$(CLANG_FORMAT) -i $(FORMATTED)
style: check-format ## names, sizes and words that no file may break
	@tests/style.sh
check-format: ## fail if `make format` would change anything
	@$(CLANG_FORMAT) --dry-run -Werror $(FORMATTED)

clean: ## remove build/
	rm -rf build

help: ## this list
	@sed -n 's/^\([a-z][a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

# Chat templates of other people's models are not part of this tree: where a folder of them
# with their recorded renderings lies beside it, the tests read them there.
unit: export DORMOUSE_TEMPLATE_GOLDENS ?= $(wildcard ../shared/golden/templates)

# `make V=1` shows the commands themselves.
Q    := $(if $(V),,@)
say   = @$(if $(V),:,printf '  %-4s %s\n')

.PHONY: all run deps deps-test model test e2e storms unit fuzzers fuzz bench bench-loss bench-wake bench-lookup bench-replay bench-peer layers headers format style \
        check-format clean help
.DELETE_ON_ERROR:
.SECONDARY:
MAKEFLAGS += --no-builtin-rules
