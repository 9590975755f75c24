/* kvstore_list.c - the lists of what is to be copied down.
 *
 * What is to be copied is on the list of its level, in the order in which conversations
 * fell quiet, and in each prefix first, so that what has reached a tier can be matched
 * there.  A block leaves the list when it is copied, when the policy refuses it, or when
 * somebody uses it again; the next time its conversation falls quiet it is listed anew.
 * Others may use what comes first in a conversation all the time, so that its own turn would
 * never come: what follows it calls for it (kvstore_state.h, invariant 7).
 */
#include "offload/kvstore_state.h"

void kv_list_append(struct kv_list *list, struct kv_note *notes, uint32_t i)
{
    notes[i].prev = list->tail;
    notes[i].next = KV_NONE;
    *(list->tail == KV_NONE ? &list->head : &notes[list->tail].next) = i;
    list->tail = i;
    list->n++;
}

void kv_list_prepend(struct kv_list *list, struct kv_note *notes, uint32_t i)
{
    notes[i].prev = KV_NONE;
    notes[i].next = list->head;
    *(list->head == KV_NONE ? &list->tail : &notes[list->head].prev) = i;
    list->head = i;
    list->n++;
}

void kv_list_remove(struct kv_list *list, struct kv_note *notes, uint32_t i)
{
    struct kv_note *x = &notes[i];
    *(x->prev == KV_NONE ? &list->head : &notes[x->prev].next) = x->next;
    *(x->next == KV_NONE ? &list->tail : &notes[x->next].prev) = x->prev;
    list->n--;
}

void kv_unlist(struct kvstore *kv, enum kv_source l, uint32_t i)
{
    struct kv_note *note = kv_note(kv, l, i);
    if (!note->listed) return;
    kv_list_remove(&kv->level[l].to_copy, kv->level[l].notes, i);
    kv->level[l].unsaved -= note->unsaved;
    note->listed = note->unsaved = note->needed = false;
}

void kv_forget_slot(struct kvstore *kv, const struct kv_transfer *t)
{
    kv_unlist(kv, t->level, t->io.slot);
}

static void enlist(struct kvstore *kv, enum kv_source l, uint32_t i, bool first)
{
    struct kv_note *note = kv_note(kv, l, i);
    kv_unlist(kv, l, i);
    if (first)
        kv_list_prepend(&kv->level[l].to_copy, kv->level[l].notes, i);
    else
        kv_list_append(&kv->level[l].to_copy, kv->level[l].notes, i);
    note->listed = true;
    note->unsaved = !kv_below(kv, l, kv_meta_at(kv, l, i));
    kv->level[l].unsaved += note->unsaved;
}

/* Does a tier below lack just this one before what follows it? */
static bool needed_below(const struct kvstore *kv, enum kv_source l, uint32_t i)
{
    const struct block_meta *meta = kv_meta_at(kv, l, i);
    bool follows = false;
    for (int k = (int)l + 1; k < KV_SOURCES && !follows; k++)
        follows = kv_child(kv, (enum kv_source)k, meta) != NULL;
    return follows && !kv_below(kv, l, meta);
}

void kv_list_block(struct kvstore *kv, enum kv_source l, uint32_t i)
{
    if (needed_below(kv, l, i))
        kv_list_needed(kv, l, i);
    else
        enlist(kv, l, i, false);
}

void kv_list_urgent(struct kvstore *kv, uint32_t page)
{
    enlist(kv, KV_DEVICE, page, true);
    kv_note(kv, KV_DEVICE, page)->leaving = true;
}

void kv_list_needed(struct kvstore *kv, enum kv_source l, uint32_t i)
{
    enlist(kv, l, i, true);
    kv_note(kv, l, i)->needed = true;
}

void kv_list_put_off(struct kvstore *kv, enum kv_source l, uint32_t i)
{
    enlist(kv, l, i, false);
}
