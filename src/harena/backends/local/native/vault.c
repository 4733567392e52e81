/* Memory that no fork inherits. A job of the zygote is a fork of it and may read all of its own memory, so what the host
 * sends and what jobs write is kept here alone: read and written by system calls, never copied to a stack, to malloc or
 * through registers. The kernel leaves the mappings out of every child that does not share our memory. */
#include "harena.h"
#include <sys/mman.h>

#define SMALLEST 16 /* as a power of two */
#define CLASSES 5   /* up to 1 MB; larger blocks are given back to the kernel */
#define KEPT 32     /* free blocks of one class: a page that is used again costs no fault */

static struct block {
  struct block *next;
} *kept[CLASSES];
static int kept_count[CLASSES];
static size_t mapped;

size_t vault_bytes(void) { return mapped; }

/* The class of a size, and the size that blocks of it have; CLASSES where it is too large for one. */
static int class_of(size_t *size) {
  for (int class = 0; class < CLASSES; class++)
    if (*size <= (size_t)1 << (SMALLEST + class)) {
      *size = (size_t)1 << (SMALLEST + class);
      return class;
    }
  *size = (*size + 4095) & ~(size_t)4095;
  return CLASSES;
}

void *vault_take(size_t size) {
  int class = class_of(&size);
  if (class < CLASSES && kept[class]) {
    struct block *block = kept[class];
    kept[class] = block->next;
    kept_count[class]--;
    return block;
  }
  void *block = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) return NULL;
  if (madvise(block, size, MADV_DONTFORK)) {
    int number = errno;
    munmap(block, size);
    errno = number;
    return NULL;
  }
  mapped += size;
  return block;
}

void vault_give(void *data, size_t size) {
  struct block *block = data;
  if (!block) return;
  int class = class_of(&size);
  if (class < CLASSES && kept_count[class] < KEPT) {
    block->next = kept[class];
    kept[class] = block;
    kept_count[class]++;
    return;
  }
  munmap(block, size);
  mapped -= size;
}
