/* matmul rows|planes int8|fp16|fp16_out M K N CORES PROGRAMS NODE
 *
 * Computes a matmul on the NPU, columns split over PROGRAMS chained programs, on each of CORES cores (a
 * mask), and compares with plain loops. Exit status 0 when all are equal. */
#include "npu.h"

static int value(unsigned *seed)
{
	*seed = *seed * 1103515245u + 12345u;
	return (int)(*seed >> 16 & 15) - 8;
}

int main(int argc, char **argv)
{
	CHECK(argc == 9);
	int planes = !strcmp(argv[1], "planes");
	enum type t = !strcmp(argv[2], "int8") ? INT8 : !strcmp(argv[2], "fp16") ? FP16 : FP16_OUT;
	unsigned m = (unsigned)atoi(argv[3]), k = (unsigned)atoi(argv[4]), n = (unsigned)atoi(argv[5]);
	unsigned cores = (unsigned)atoi(argv[6]), programs = (unsigned)atoi(argv[7]);
	int fd = open(argv[8], O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);

	char name[16] = {0};
	struct version version = {.name = name, .name_len = sizeof name - 1};
	CHECK(ioctl(fd, VERSION, &version) == 0 && !strcmp(name, "rknpu"));
	struct action reset = {.flags = 6};
	CHECK(ioctl(fd, ACTION, &reset) == 0);

	/* Old programs use plain buffers, new ones cached ones that they keep in step. */
#ifdef UAPI_40
	uint32_t plain = 0, tasks_flags = KERNEL_MAPPING;
#else
	uint32_t plain = NON_CONTIGUOUS | CACHEABLE | UNALIGNED, tasks_flags = plain | KERNEL_MAPPING;
#endif
	unsigned bytes = row_bytes(t, 1), width = n / programs, ob = out_bytes(t);
	CHECK(width % tile(t) == 0);
	struct buffer regcmd = make(fd, 4096 * programs, plain, 0);
	struct buffer tasks = make(fd, 4096, tasks_flags, 0);
	struct buffer in = make(fd, (size_t)m * k * bytes, plain, 0);
	struct buffer weights = make(fd, (size_t)k * n * bytes, plain, 0);
	struct buffer out = make(fd, (size_t)m * n * ob, plain, 0);
	struct buffer *all[] = {&regcmd, &tasks, &in, &weights, &out};

	unsigned seed = m * 31 + k * 17 + n;
	int *a = malloc(sizeof(int) * m * k), *b = malloc(sizeof(int) * k * n);
	for (unsigned i = 0; i < m; i++)
		for (unsigned j = 0; j < k; j++) {
			int v = a[i * k + j] = value(&seed);
			size_t at = cell_at(planes, m, k, 16 / bytes, i, j);
			if (t == INT8)
				((int8_t *)in.cpu)[at] = (int8_t)v;
			else
				((uint16_t *)in.cpu)[at] = half_of(v);
		}
	for (unsigned j = 0; j < k; j++)
		for (unsigned c = 0; c < n; c++) {
			int v = b[j * n + c] = value(&seed);
			if (t == INT8)
				((int8_t *)weights.cpu)[weight_at(t, k, j, c)] = (int8_t)v;
			else
				((uint16_t *)weights.cpu)[weight_at(t, k, j, c)] = half_of(v);
		}
	memset(out.cpu, 0xee, out.size);

	for (unsigned p = 0; p < programs; p++) {
		uint64_t *at = (uint64_t *)regcmd.cpu + 512 * p;
		uint32_t next = p + 1 < programs ? (uint32_t)regcmd.dma + 4096 * (p + 1) : 0;
		unsigned amount = program(at, planes, t, m, k, width, (uint32_t)in.dma,
					  (uint32_t)weights.dma + p * width * k * bytes,
					  (uint32_t)out.dma + p * width * m * ob, next);
		((struct task *)tasks.cpu)[p] = task(amount, regcmd.dma + 4096 * p);
	}
	struct submit submit = submit_of(&tasks, programs, cores);
#ifndef UAPI_40
	for (unsigned i = 0; i < 5; i++)
		CHECK(sync_buffer(fd, all[i], TO_DEVICE | (all[i] == &tasks ? FROM_DEVICE : 0)) == 0);
#endif
	CHECK(ioctl(fd, SUBMIT, &submit) == 0);
	CHECK(submit.task_counter == programs);
#ifndef UAPI_40
	CHECK(sync_buffer(fd, &out, FROM_DEVICE) == 0);
	CHECK(submit.hw_elapse_time >= 0);
#endif

	unsigned wrong = 0;
	for (unsigned i = 0; i < m; i++)
		for (unsigned c = 0; c < n; c++) {
			int expected = 0;
			for (unsigned j = 0; j < k; j++)
				expected += a[i * k + j] * b[j * n + c];
			size_t at = (size_t)(c / width) * width * m +
				    cell_at(planes, m, width, 16 / ob, i, c % width);
			float got = t == INT8   ? (float)((int32_t *)out.cpu)[at]
				    : t == FP16 ? ((float *)out.cpu)[at]
						: float_of(((uint16_t *)out.cpu)[at]);
			/* Results in halves are rounded as half_of does only up to 2048. */
			if (t == FP16_OUT && abs(expected) > 2048)
				continue;
			wrong += got != (float)expected;
		}
	printf("%u of %u wrong\n", wrong, m * n);
	for (unsigned i = 0; i < 5; i++)
		drop(fd, all[i]);
	CHECK(close(fd) == 0);
	free(a);
	free(b);
	return wrong != 0;
}
