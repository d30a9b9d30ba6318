/* Buffers, programs and submits, as small programs in the field write them. */
#pragma once
#include "uapi.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Ends the program with the line that failed. */
#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			printf("line %d: %s (errno %d)\n", __LINE__, #condition, errno);           \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

struct buffer {
	uint32_t handle;
	uint64_t obj, dma;
	size_t size;
	void *cpu;
};

static inline struct buffer make(int fd, size_t size, uint32_t flags, int domain)
{
	struct mem_create create = {.flags = flags, .size = size};
#ifndef UAPI_40
	create.iommu_domain_id = domain;
#else
	(void)domain;
#endif
	CHECK(ioctl(fd, MEM_CREATE, &create) == 0);
	struct mem_map map = {.handle = create.handle};
	CHECK(ioctl(fd, MEM_MAP, &map) == 0);
	void *cpu = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)map.offset);
	CHECK(cpu != MAP_FAILED);
	return (struct buffer){create.handle, create.obj_addr, create.dma_addr, size, cpu};
}

static inline int sync_buffer(int fd, const struct buffer *b, uint32_t flags)
{
	struct mem_sync sync = {.flags = flags, .obj_addr = b->obj, .size = b->size};
	return ioctl(fd, MEM_SYNC, &sync);
}

static inline int destroy(int fd, const struct buffer *b)
{
	struct mem_destroy destroy = {.handle = b->handle, .obj_addr = b->obj};
	return ioctl(fd, MEM_DESTROY, &destroy);
}

static inline void drop(int fd, struct buffer *b)
{
	CHECK(munmap(b->cpu, b->size) == 0);
	CHECK(destroy(fd, b) == 0);
}

/* Types, by what the program computes. */
enum type { INT8, FP16, FP16_OUT };

static inline unsigned row_bytes(enum type t, unsigned k) { return t == INT8 ? k : 2 * k; }
static inline unsigned tile(enum type t) { return t == INT8 ? 32 : 16; }
static inline unsigned out_bytes(enum type t) { return t == FP16_OUT ? 2 : 4; }

struct listing {
	uint64_t *entry;
	unsigned count;
};

static inline void put(struct listing *l, unsigned block, unsigned reg, uint32_t value)
{
	l->entry[l->count++] = (uint64_t)block << 48 | (uint64_t)value << 16 | reg;
}

static inline void zeros(struct listing *l, unsigned block, unsigned first, unsigned last)
{
	for (unsigned reg = first; reg <= last; reg += 4)
		put(l, block, reg, 0);
}

/* Writes a matmul program to `at`; returns its number of entries before the trailer. `planes` asks for
 * 16-byte channel planes instead of row-major, `next` is the next program's address or 0. */
static inline unsigned program(uint64_t *at, int planes, enum type t, unsigned m, unsigned k, unsigned n,
			       uint32_t in, uint32_t weights, uint32_t out, uint32_t next)
{
	enum { CNA = 0x201, CORE = 0x801, DPU = 0x1001 };
	struct listing l = {at, 0};
	unsigned row = row_bytes(t, k), data = (m * row + 32767) / 32768;
	unsigned size_e = t == INT8 ? 7 : t == FP16 ? 3 : 1, atom = 16 / out_bytes(t);
	uint32_t format = t == INT8 ? 0x80000000u : t == FP16 ? 0xa8000002u : 0x48000002u;
	put(&l, DPU, 0x4004, 0xe);
	put(&l, CNA, 0x100c, (planes ? 0 : 1u << 29) | (t == INT8 ? 0 : 0x120));
	put(&l, CNA, 0x1010, (m + 1) << 4);
	put(&l, CNA, 0x1014, 9);
	put(&l, CNA, 0x1020, 1 << 16 | m);
	put(&l, CNA, 0x1024, (k - 1) << 16 | k);
	put(&l, CNA, 0x1028, 1);
	put(&l, CNA, 0x102c, m);
	put(&l, CNA, 0x1030, n * row);
	put(&l, CNA, 0x1034, row);
	put(&l, CNA, 0x1038, 0x01010000 | n);
	put(&l, CNA, 0x1040, (12 - data) << 4 | data);
	put(&l, CNA, 0x1044, (row + 63) / 64);
	put(&l, CNA, 0x104c, 0xb);
	for (unsigned reg = 0x1050; reg <= 0x105c; reg += 4)
		put(&l, CNA, reg, 0x10000);
	zeros(&l, CNA, 0x1060, 0x1068);
	put(&l, CNA, 0x1070, in);
	put(&l, CNA, 0x1074, 0);
	put(&l, CNA, 0x1078, 0xf000f);
	put(&l, CNA, 0x107c, planes ? 4 : row / 16);
	int surface = m < 4 ? -3 : 4 * ((int)m / 4 - 1);
	put(&l, CNA, 0x1080, planes ? (uint32_t)surface & 0xfffffff : 0);
	put(&l, CNA, 0x1084, 1 << 16 | m);
	put(&l, CNA, 0x1088, k);
	zeros(&l, CNA, 0x1100, 0x1104);
	put(&l, CNA, 0x1110, weights);
	zeros(&l, CNA, 0x1140, 0x1184);
	put(&l, CORE, 0x3010, (t == INT8 ? 0 : 2 << 8) | (planes && t == INT8 ? 0 : 1));
	put(&l, CORE, 0x3014, (m - 1) << 16);
	put(&l, CORE, 0x3018, n - 1);
	put(&l, CORE, 0x301c, 0);
	put(&l, CORE, 0x3030, 0);
	put(&l, DPU, 0x400c, 0x1e4);
	put(&l, DPU, 0x4010, format);
	put(&l, DPU, 0x4014, 0);
	put(&l, DPU, 0x4020, out);
	put(&l, DPU, 0x4024, (planes ? m : 1) << 4);
	put(&l, DPU, 0x4030, 0);
	put(&l, DPU, 0x4034, m - 1);
	put(&l, DPU, 0x4038, planes ? 0 : (n / atom - 1) << 16 | (n / atom - 1));
	put(&l, DPU, 0x403c, (n - 1) << 16 | (n - 1));
	put(&l, DPU, 0x4040, 0x53);
	zeros(&l, DPU, 0x4044, 0x404c);
	put(&l, DPU, 0x4050, size_e << 8 | size_e << 5 | size_e << 2 | (planes ? 2 : 0));
	put(&l, DPU, 0x4054, 0);
	put(&l, DPU, 0x4058, n - 1);
	put(&l, DPU, 0x405c, (m - 1) << 16);
	put(&l, DPU, 0x4060, 0x53);
	zeros(&l, DPU, 0x4064, 0x406c);
	put(&l, DPU, 0x4070, 0x383);
	put(&l, DPU, 0x4074, 0);
	put(&l, DPU, 0x4078, 1);
	zeros(&l, DPU, 0x407c, 0x4080);
	put(&l, DPU, 0x4084, t == FP16_OUT ? 0x10001 : 1);
	put(&l, DPU, 0x4088, 0);
	zeros(&l, DPU, 0x4090, 0x40ac);
	put(&l, DPU, 0x40c0, (planes ? m : 1) * (size_e + 1) << 4);
	put(&l, DPU, 0x40c4, 0);
	zeros(&l, DPU, 0x4100, 0x412c);
	unsigned amount = l.count;
	/* All programs of a chain are equally long, so this amount is also the next one's. */
	unsigned pairs = (amount + 4 + 1) / 2;
	put(&l, next ? 0x101 : 0, next ? 0x10 : 0, next);
	put(&l, 0x101, 0x14, next ? pairs - 1 : 0);
	put(&l, 0x41, 0, 0);
	put(&l, 0x81, 8, 0xd);
	return amount;
}

static inline struct task task(unsigned amount, uint64_t address)
{
	return (struct task){
		.enable_mask = 0xd,
		.int_mask = 0x300,
		.int_clear = 0x1ffff,
		.regcfg_amount = amount,
		.regcmd_addr = address,
	};
}

/* A blocking submit of tasks 0..count on the cores of `mask`. */
static inline struct submit submit_of(const struct buffer *tasks, unsigned count, unsigned mask)
{
	struct submit s = {
		.flags = JOB_PC | JOB_PINGPONG,
		.timeout = 1000,
		.task_number = count,
		.task_obj_addr = tasks->obj,
		.core_mask = mask,
		.fence_fd = -1,
	};
	for (int i = 0; i < 5; i++)
		s.subcore[i] = (struct subcore){0, count};
	return s;
}

/* Where elements lie. */
static inline size_t weight_at(enum type t, unsigned k, unsigned kk, unsigned n)
{
	unsigned w = tile(t);
	return (((size_t)(n / w) * (k / 32) + kk / 32) * w + n % w) * 32 + kk % 32;
}

static inline size_t cell_at(int planes, unsigned m, unsigned width, unsigned c2, unsigned row, unsigned col)
{
	return planes ? ((size_t)(col / c2) * m + row) * c2 + col % c2 : (size_t)row * width + col;
}

/* Halves of small integers and back, exact. */
static inline uint16_t half_of(int value)
{
	uint16_t sign = value < 0 ? 0x8000 : 0;
	unsigned magnitude = (unsigned)abs(value), e = 0;
	if (magnitude == 0)
		return sign;
	while (magnitude >> (e + 1))
		e++;
	unsigned fraction = e <= 10 ? magnitude << (10 - e) : magnitude >> (e - 10);
	return (uint16_t)(sign | (e + 15) << 10 | (fraction & 0x3ff));
}

static inline float float_of(uint16_t half)
{
	int e = (half >> 10 & 31) - 15;
	float value = e == -15 ? 0 : (float)(0x400 | (half & 0x3ff));
	for (; e < 10 && value != 0; e++)
		value /= 2;
	for (; e > 10; e--)
		value *= 2;
	return half & 0x8000 ? -value : value;
}
