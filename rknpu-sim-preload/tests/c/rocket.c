/* rocket PART NODE
 *
 * With the mainline driver: "products" computes matmuls in tasks of one job and compares with plain loops,
 * "waits" looks at what PREP_BO and SUBMIT answer, "closes" closes the node while a job may run. Exit status
 * 0 when all is right. */
#include "npu.h"
#include <time.h>

struct create_bo { uint32_t size, handle; uint64_t dma, offset; };
struct task_8 { uint32_t regcmd, count; };
struct job { uint64_t tasks, in, out; uint32_t task_count, task_size, in_count, out_count; };
struct submit_jobs { uint64_t jobs; uint32_t count, size; uint64_t reserved; };
struct prep_bo { uint32_t handle, reserved; int64_t until_ns; };
struct fini_bo { uint32_t handle, reserved; };

#define CREATE_BO _IOWR('d', 0x40, struct create_bo)
#define SUBMIT_JOBS _IOW('d', 0x41, struct submit_jobs)
#define PREP_BO _IOW('d', 0x42, struct prep_bo)
#define FINI_BO _IOW('d', 0x43, struct fini_bo)


static struct buffer bo(int fd, size_t size)
{
	struct create_bo create = {.size = (uint32_t)size};
	CHECK(ioctl(fd, CREATE_BO, &create) == 0);
	void *cpu = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)create.offset);
	CHECK(cpu != MAP_FAILED);
	return (struct buffer){create.handle, 0, create.dma, size, cpu};
}

static int prepare(int fd, const struct buffer *b, int64_t wait_ns)
{
	struct timespec now;
	CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	struct prep_bo prep = {.handle = b->handle,
			       .until_ns = now.tv_sec * 1000000000ll + now.tv_nsec + wait_ns};
	return ioctl(fd, PREP_BO, &prep);
}

static void finish(int fd, const struct buffer *b)
{
	struct fini_bo fini = {.handle = b->handle};
	CHECK(ioctl(fd, FINI_BO, &fini) == 0);
}

static void close_bo(int fd, struct buffer *b)
{
	CHECK(munmap(b->cpu, b->size) == 0);
	struct gem_close close = {.handle = b->handle};
	CHECK(ioctl(fd, GEM_CLOSE, &close) == 0);
}

static int submit_job(int fd, const struct task_8 *tasks, unsigned count, const uint32_t *in, unsigned ins,
		      const uint32_t *out, unsigned outs)
{
	struct job job = {.tasks = (uintptr_t)tasks, .in = (uintptr_t)in, .out = (uintptr_t)out,
			  .task_count = count, .task_size = sizeof *tasks, .in_count = ins, .out_count = outs};
	struct submit_jobs submit = {.jobs = (uintptr_t)&job, .count = 1, .size = sizeof job};
	return ioctl(fd, SUBMIT_JOBS, &submit);
}

static int value(unsigned *seed)
{
	*seed = *seed * 1103515245u + 12345u;
	return (int)(*seed >> 16 & 15) - 8;
}

static void product(int fd, int planes, unsigned m, unsigned k, unsigned n, unsigned tasks)
{
	struct buffer regcmd = bo(fd, 4096 * tasks), in = bo(fd, m * k), weights = bo(fd, k * n);
	struct buffer out = bo(fd, m * n * 4);
	struct buffer *all[] = {&regcmd, &in, &weights, &out};
	unsigned seed = m * 31 + k * 17 + n, width = n / tasks;
	int8_t *a = malloc(m * k), *b = malloc(k * n);
	for (unsigned i = 0; i < m * k; i++)
		((int8_t *)in.cpu)[cell_at(planes, m, k, 16, i / k, i % k)] = a[i] = (int8_t)value(&seed);
	for (unsigned i = 0; i < k * n; i++)
		((int8_t *)weights.cpu)[weight_at(INT8, k, i / n, i % n)] = b[i] = (int8_t)value(&seed);
	memset(out.cpu, 0xee, out.size);
	struct task_8 list[8];
	for (unsigned t = 0; t < tasks; t++) {
		uint64_t *at = (uint64_t *)regcmd.cpu + 512 * t;
		unsigned amount = program(at, planes, INT8, m, k, width, (uint32_t)in.dma,
					  (uint32_t)weights.dma + t * width * k,
					  (uint32_t)out.dma + t * width * m * 4, 0);
		list[t] = (struct task_8){(uint32_t)regcmd.dma + 4096 * t, amount + 4};
	}
	for (unsigned i = 0; i < 4; i++)
		finish(fd, all[i]);
	uint32_t ins[] = {regcmd.handle, in.handle, weights.handle}, outs[] = {out.handle};
	CHECK(submit_job(fd, list, tasks, ins, 3, outs, 1) == 0);
	CHECK(prepare(fd, &out, 2000000000ll) == 0);
	for (unsigned i = 0; i < m; i++)
		for (unsigned c = 0; c < n; c++) {
			int expected = 0;
			for (unsigned j = 0; j < k; j++)
				expected += a[i * k + j] * b[j * n + c];
			size_t at = (size_t)(c / width) * width * m + cell_at(planes, m, width, 4, i, c % width);
			CHECK(((int32_t *)out.cpu)[at] == expected);
		}
	for (unsigned i = 0; i < 4; i++)
		close_bo(fd, all[i]);
}

static void waits(int fd)
{
	struct buffer b = bo(fd, 4096);
	CHECK(b.dma == 0);
	CHECK(prepare(fd, &b, -1) == 0);
	/* A program that is nowhere hangs until the limit; then the wait is over, and nothing is said. */
	struct task_8 nowhere = {0x700000, 112};
	CHECK(submit_job(fd, &nowhere, 1, NULL, 0, &b.handle, 1) == 0);
	CHECK(prepare(fd, &b, 0) == -1 && errno == EBUSY);
	CHECK(prepare(fd, &b, 20000000) == -1 && errno == ETIMEDOUT);
	CHECK(prepare(fd, &b, 5000000000ll) == 0);
	/* A handle in both lists: dropped, and SUBMIT says 0. */
	CHECK(submit_job(fd, &nowhere, 1, &b.handle, 1, &b.handle, 1) == 0);
	CHECK(prepare(fd, &b, 0) == 0);
	close_bo(fd, &b);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EINVAL);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	int fd = open(argv[2], O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	char name[16] = {0};
	struct version version = {.name = name, .name_len = sizeof name - 1};
	CHECK(ioctl(fd, VERSION, &version) == 0 && !strcmp(name, "rocket"));
	CHECK(access("/dev/dri/card1", F_OK) == -1);
	if (!strcmp(argv[1], "products"))
		for (int planes = 0; planes < 2; planes++) {
			product(fd, planes, 1, 32, 32, 1);
			product(fd, planes, 4, 64, 128, 4);
			product(fd, planes, 64, 512, 64, 2);
		}
	else if (!strcmp(argv[1], "waits"))
		waits(fd);
	else {
		struct buffer b = bo(fd, 4096);
		CHECK(munmap(b.cpu, b.size) == 0);
		struct task_8 nowhere = {0x700000, 112};
		CHECK(submit_job(fd, &nowhere, 1, NULL, 0, &b.handle, 1) == 0);
	}
	CHECK(close(fd) == 0);
	return 0;
}
