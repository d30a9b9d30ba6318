/* The driver's interface as programs see it: 48-byte MEM_CREATE of 0.9.6 and later, or with UAPI_40
 * the 40-byte one before it. Request words follow from the sizes. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>

struct mem_create {
	uint32_t handle, flags;
	uint64_t size, obj_addr, dma_addr, sram_size;
#ifndef UAPI_40
	int32_t iommu_domain_id;
	uint32_t core_mask;
#endif
};

struct mem_map {
	uint32_t handle, reserved;
	uint64_t offset;
};

struct mem_destroy {
	uint32_t handle, reserved;
	uint64_t obj_addr;
};

struct mem_sync {
	uint32_t flags, reserved;
	uint64_t obj_addr, offset, size;
};

struct action {
	uint32_t flags, value;
};

struct task {
	uint32_t flags, op_idx, enable_mask, int_mask, int_clear, int_status;
	uint32_t regcfg_amount, regcfg_offset;
	uint64_t regcmd_addr;
} __attribute__((packed));

struct subcore {
	uint32_t start, number;
};

struct submit {
	uint32_t flags, timeout, task_start, task_number, task_counter;
	int32_t priority;
	uint64_t task_obj_addr;
	union {
		uint64_t regcfg_obj_addr;
		struct {
			uint32_t iommu_domain_id, reserved;
		};
	};
	uint64_t task_base_addr;
	int64_t hw_elapse_time;
	uint32_t core_mask;
	int32_t fence_fd;
	struct subcore subcore[5];
};

struct version {
	int major, minor, patch;
	size_t name_len;
	char *name;
	size_t date_len;
	char *date;
	size_t desc_len;
	char *desc;
};

struct prime {
	uint32_t handle, flags;
	int32_t fd;
};

struct heap_allocation {
	uint64_t len;
	uint32_t fd, fd_flags;
	uint64_t heap_flags;
};

struct gem_close {
	uint32_t handle, pad;
};

#define ACTION _IOWR('d', 0x40, struct action)
#define SUBMIT _IOWR('d', 0x41, struct submit)
#define MEM_CREATE _IOWR('d', 0x42, struct mem_create)
#define MEM_MAP _IOWR('d', 0x43, struct mem_map)
#define MEM_DESTROY _IOWR('d', 0x44, struct mem_destroy)
#define MEM_SYNC _IOWR('d', 0x45, struct mem_sync)
#define VERSION _IOWR('d', 0x00, struct version)
#define GEM_CLOSE _IOW('d', 0x09, struct gem_close)
#define PRIME_HANDLE_TO_FD _IOWR('d', 0x2d, struct prime)
#define PRIME_FD_TO_HANDLE _IOWR('d', 0x2e, struct prime)
#define HEAP_ALLOC _IOWR('H', 0, struct heap_allocation)
#define BUF_SYNC _IOW('b', 0, uint64_t)

_Static_assert(sizeof(struct submit) == 104, "submit");
_Static_assert(sizeof(struct task) == 40, "task");
#ifdef UAPI_40
_Static_assert(sizeof(struct mem_create) == 40 && MEM_CREATE == 0xC0286442u, "mem_create");
#else
_Static_assert(sizeof(struct mem_create) == 48 && MEM_CREATE == 0xC0306442u, "mem_create");
#endif

/* MEM_CREATE flags, sync directions, job flags. */
enum { NON_CONTIGUOUS = 1, CACHEABLE = 2, KERNEL_MAPPING = 8, UNALIGNED = 0x400 };
enum { TO_DEVICE = 1, FROM_DEVICE = 2 };
enum { JOB_PC = 1, JOB_NONBLOCK = 2, JOB_PINGPONG = 4 };
