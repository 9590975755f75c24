/* kv_pages.h - the KV pool as offload's store sees it: pages by number.
 *
 * Owns     nothing; the pool must outlive what is done with the functions.
 * Threads  the engine's, as the pool.
 */
#ifndef SERVER_KV_PAGES_H
#define SERVER_KV_PAGES_H

#include "model/kv_pool.h"
#include "offload/kvstore.h"

struct kv_pages kv_pages_of(struct kv_pool *p);

#endif
