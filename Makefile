# Builds, runs and tests dormouse.  `make help` lists what there is.
#
#   make                             the server, optimized, into build/cpu/
#   make SAN=address,undefined test  everything sanitized, in build/cpu-address-undefined/
#   make CC=clang BUILD=build/clang  another compiler, in a directory of its own
#
# Every combination of switches has its own directory, so none ever mixes.

SAN    ?=
DEBUG  ?= 0
WERROR ?= 1

comma  := ,
empty  :=
space  := $(empty) $(empty)
FLAVOR := cpu$(if $(filter 1,$(DEBUG)),-debug)$(if $(SAN),-$(subst $(comma),-,$(SAN)))
BUILD  ?= build/$(FLAVOR)

# ---- toolchain ---------------------------------------------------------------

CC           ?= cc
CLANG        ?= clang
CLANG_FORMAT ?= clang-format
PKG_CONFIG   ?= pkg-config

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
# pkg-config name : Debian package.  jsmn is one header and has no .pc file.

DEPS := libmicrohttpd:libmicrohttpd-dev libcjson:libcjson-dev libpcre2-8:libpcre2-dev \
        libutf8proc:libutf8proc-dev inih:libinih-dev libsodium:libsodium-dev \
        cmocka:libcmocka-dev
PKGS := $(foreach d,$(filter-out cmocka:%,$(DEPS)),$(firstword $(subst :, ,$(d))))

PKG_CFLAGS  = $(shell $(PKG_CONFIG) --cflags $(PKGS))
PKG_LIBS    = $(shell $(PKG_CONFIG) --libs $(PKGS))

# ---- what is built -----------------------------------------------------------
# A room may use the rooms named here and no others; `make layers` checks the includes,
# and a room's tests link against just these.

ROOMS          := kernels tokenizer model offload server
SEES_kernels   := kernels
SEES_tokenizer := tokenizer kernels
SEES_model     := model kernels
SEES_offload   := offload kernels
SEES_server    := server model offload tokenizer kernels

src_of   = $(filter-out server/main.c,$(wildcard $1/*.c $1/*/*.c))
obj_of   = $(patsubst %,$(BUILD)/%.o,$(call src_of,$1))
libs_of  = $(foreach r,$(SEES_$1),$(if $(call src_of,$r),$(BUILD)/lib$r.a))
tests_of = $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/$1/test_*.c))

SERVER  := $(BUILD)/dormouse
TESTS   := $(foreach r,$(ROOMS),$(call tests_of,$r))
FUZZERS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/fuzz/fuzz_*.c))
BENCHES := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/bench_*.c))
HELPERS := $(patsubst %,$(BUILD)/%.o,$(filter-out tests/bench_%,$(wildcard tests/*.c)))
COUNT_ALLOCS := $(foreach f,malloc calloc realloc aligned_alloc strdup,-Wl,--wrap=$(f))

all: $(SERVER) ## build the server (default)

$(SERVER): $(BUILD)/server/main.c.o $(call libs_of,server)
	$(say) LINK $@
	$(Q)$(CC) $^ $(ALL_LDFLAGS) $(PKG_LIBS) $(LDLIBS) -o $@

define room_rules
$(BUILD)/lib$1.a: $(call obj_of,$1)
	$$(say) AR $$@
	$$(Q)rm -f $$@ && ar rcs $$@ $$^

$(BUILD)/tests/$1/test_%: $(BUILD)/tests/$1/test_%.c.o $(HELPERS) $(call libs_of,$1)
	$$(say) LINK $$@
	$$(Q)$$(CC) $$^ $$(ALL_LDFLAGS) $(COUNT_ALLOCS) $$(PKG_LIBS) -lcmocka $$(LDLIBS) -o $$@
endef
$(foreach r,$(ROOMS),$(eval $(call room_rules,$r)))

$(BUILD)/tests/bench_%: $(BUILD)/tests/bench_%.c.o $(HELPERS) $(call libs_of,server)
	$(say) LINK $@
	$(Q)$(CC) $^ $(ALL_LDFLAGS) $(COUNT_ALLOCS) $(PKG_LIBS) $(LDLIBS) -o $@

$(BUILD)/tests/fuzz/fuzz_%: tests/fuzz/fuzz_%.c $(foreach r,$(ROOMS),$(call src_of,$r))
	$(say) FUZZ $@
	@mkdir -p $(@D)
	$(Q)$(CLANG) -std=c17 -D_GNU_SOURCE -I. -g -O1 -ffp-contract=off -pthread \
	    -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
	    $(PKG_CFLAGS) $^ $(PKG_LIBS) $(LDLIBS) -o $@

# The instruction set is asked for file by file; cpu_open chooses among them at run time.
$(BUILD)/kernels/cpu/%_avx2.c.o: ALL_CFLAGS += -mavx2 -mfma -mf16c

$(BUILD)/%.c.o: %.c
	$(say) CC $<
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) $(CPPFLAGS) $(PKG_CFLAGS) -MMD -MP -c $< -o $@

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

# ---- checks ------------------------------------------------------------------

unit: $(TESTS) ## the unit tests; T=room/name runs one program
	@tests/run.sh $(if $(T),$(BUILD)/tests/$(dir $(T))test_$(notdir $(T)),$(TESTS))

fuzz: $(FUZZERS) ## run each fuzzer for FUZZ_SECONDS (default 60)
	@for f in $(FUZZERS); do $$f -max_total_time=$(or $(FUZZ_SECONDS),60) || exit 1; done

bench: $(BENCHES) ## speeds beside the machine's limits
	@for b in $(BENCHES); do $$b || exit 1; done

layers: $(addprefix layer-,$(ROOMS)) ## check that no room includes one above it
layer-%:
	@! grep -n '^#include "' /dev/null $(wildcard $*/*.[ch] $*/*/*.[ch]) \
	    | grep -vE '"($(subst $(space),|,$(SEES_$*)))/'

headers: ## check that every header compiles by itself
	@for h in $(wildcard */*.h */*/*.h); do \
	    $(CC) $(ALL_CFLAGS) $(PKG_CFLAGS) -Wno-unused-function -fsyntax-only -include $$h -x c /dev/null || exit 1; done

FORMATTED := $(wildcard */*.[ch] */*/*.[ch])
format: ## rewrite the sources in the house style
	$(CLANG_FORMAT) -i $(FORMATTED)
check-format: ## fail if `make format` would change anything
	@$(CLANG_FORMAT) --dry-run -Werror $(FORMATTED)

clean: ## remove build/
	rm -rf build

help: ## this list
	@sed -n 's/^\([a-z][a-z-]*\):[^#]*## /\1\t/p' Makefile | expand -t 16

# `make V=1` shows the commands themselves.
Q    := $(if $(V),,@)
say   = @$(if $(V),:,printf '  %-4s %s\n')

.PHONY: all unit fuzz bench layers headers format check-format clean help
.DELETE_ON_ERROR:
.SECONDARY:
MAKEFLAGS += --no-builtin-rules
