# The kernels for wide registers once more, their intrinsics in plain C (immintrin.h beside
# this file), so that the tests of kernels/ and their fuzzers run them on any CPU.  All of it is
# one object, in which nothing but its paths has a name that others see: emulated_NAME for
# cpu_path_NAME.

EMULATED       := path_avx2 quant_avx2 path_avx512 quant_avx512 path_avx512bf16
EMULATED_PATHS := $(patsubst path_%,%,$(filter path_%,$(EMULATED)))
# Undefined behaviour is looked for in the kernels themselves: here it would be SIMDe's.
EMULATED_FLAGS := -Itests/emulated -include immintrin.h -O1 -Wno-psabi -Wno-unused-function \
                  -fno-sanitize=undefined

# What a test program links, and how its calls of cpu_path_choose come to tests/emulated/path.c.
EMULATED_OBJS_kernels  = $(BUILD)/tests/emulated/kernels.o $(BUILD)/tests/emulated/path.c.o
EMULATED_LINK_kernels := -Wl,--wrap=cpu_path_choose

define join_emulated
	$(say) LD $@
	$(Q)$(LD) -r -o $@ $^
	$(Q)$(OBJCOPY) $(foreach p,$(EMULATED_PATHS),--redefine-sym cpu_path_$p=emulated_$p \
	    --keep-global-symbol=emulated_$p) $@
endef

$(BUILD)/tests/emulated/kernels.o: $(EMULATED:%=$(BUILD)/tests/emulated/kernels/%.c.o)
	$(join_emulated)
$(BUILD)/fuzz/tests/emulated/kernels.o: $(EMULATED:%=$(BUILD)/fuzz/tests/emulated/kernels/%.c.o)
	$(join_emulated)

$(BUILD)/tests/emulated/kernels/%.c.o: kernels/cpu/%.c
	$(say) CC "$< (emulated)"
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALL_CFLAGS) $(EMULATED_FLAGS) $(CPPFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/fuzz/tests/emulated/kernels/%.c.o: kernels/cpu/%.c
	$(say) FUZZ "$< (emulated)"
	@mkdir -p $(@D)
	$(Q)$(CLANG) $(FUZZ_FLAGS) $(EMULATED_FLAGS) -fsanitize=fuzzer-no-link,address \
	    -MMD -MP -c $< -o $@

EMULATED_FUZZERS := $(BUILD)/tests/fuzz/fuzz_attention $(BUILD)/tests/fuzz/fuzz_kernels
$(EMULATED_FUZZERS): LDLIBS += -lcmocka $(EMULATED_LINK_kernels)
$(EMULATED_FUZZERS): $(BUILD)/fuzz/tests/emulated/kernels.o $(BUILD)/fuzz/tests/emulated/path.c.o
