/* content_hash.h - one hash of what a model's tensors are, wherever they lie.
 *
 * Equal for the same tensors in another order, in one file or in shards; different where
 * a name, an element type, a shape or any byte differs.  Metadata does not count.
 *
 *     leaf   = BLAKE2b-256(1 MiB of a tensor's bytes; what is left for the last one)
 *     tensor = length of name || name || length of dtype || dtype as the file spells it
 *              || number of dims || dims || bytes || its leaves, in order
 *     hash   = BLAKE2b-256("dormouse tensors 1" || number of tensors || the tensors by
 *              ascending name, as bytes)
 *
 * Numbers are little-endian u64.  Every part's size follows from what stands before it, so
 * no two sets make the same input.  Leaves are computed by several threads; the hash does
 * not depend on how many.
 *
 * Caller   does not change the set's files meanwhile.
 * Threads  any; it takes threads of its own and returns them.
 */
#ifndef MODEL_CONTENT_HASH_H
#define MODEL_CONTENT_HASH_H

#include "kernels/crypto.h"
#include "model/safetensors.h"

/* What a tensor is: the beginning of `tensor` above, to dims. */
void content_hash_add_kind(struct crypto_state *h, const struct tensor *t);

/* threads counts the caller.  -ENOMEM; -EAGAIN where the system grants no more threads. */
NODISCARD int content_hash_tensors(struct crypto_hash *out, const struct tensor_set *s,
                                   uint32_t threads, struct err *err);

#endif
