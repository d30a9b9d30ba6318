/* driver PART: what the public C driver and its probes do, one part a run. Exit status 0 when every result is
 * that of plain loops. */
#include "npu.h"
#include <pthread.h>
#include <sys/resource.h>

#define CACHED (NON_CONTIGUOUS | CACHEABLE | UNALIGNED)

static int fd;

/* As the driver does first: the descriptor limit, the card, a version, a power-on that is refused, a nice value. */
static void begin(void)
{
	struct rlimit limit;
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	for (int card = 0; card < 8; card++) {
		char path[32];
		snprintf(path, sizeof path, "/dev/dri/card%d", card);
		fd = open(path, O_RDWR | O_CLOEXEC);
		struct mem_create probe = {.flags = CACHED, .size = 4096};
		if (fd < 0)
			continue;
		if (ioctl(fd, MEM_CREATE, &probe) == 0) {
			struct mem_destroy destroy = {.handle = probe.handle, .obj_addr = probe.obj_addr};
			CHECK(ioctl(fd, MEM_DESTROY, &destroy) == 0);
			break;
		}
		close(fd);
		fd = -1;
	}
	CHECK(fd >= 0);
	struct action version = {.flags = 1}, power = {.flags = 20}, nice = {.flags = 19, .value = (uint32_t)-19};
	struct action sram = {.flags = 22};
	CHECK(ioctl(fd, ACTION, &version) == 0 && version.value == 908);
	CHECK(ioctl(fd, ACTION, &power) == -1 && errno == EINVAL);
	CHECK(ioctl(fd, ACTION, &nice) == 0 && ioctl(fd, ACTION, &sram) == 0);
}

static int8_t value(unsigned *seed)
{
	*seed = *seed * 1103515245u + 12345u;
	return (int8_t)(*seed >> 16);
}

/* A fresh buffer, cleaned twice as the driver does. */
static struct buffer fresh(size_t size, uint32_t more, int domain)
{
	struct buffer b = make(fd, (size + 4095) / 4096 * 4096, CACHED | more, domain);
	CHECK(sync_buffer(fd, &b, TO_DEVICE | FROM_DEVICE) == 0 && sync_buffer(fd, &b, TO_DEVICE) == 0);
	return b;
}

/* Weights B[k][n] and rows A[m][k] of int8, tiled, and their exact product. */
struct product {
	unsigned m, k, n;
	int8_t *a, *b;
	int32_t *sum;
};

static struct product made_up(unsigned m, unsigned k, unsigned n, unsigned seed)
{
	struct product p = {m, k, n, malloc(m * k), malloc(k * n), calloc(m * n, 4)};
	for (unsigned i = 0; i < m * k; i++)
		p.a[i] = value(&seed);
	for (unsigned i = 0; i < k * n; i++)
		p.b[i] = value(&seed);
	for (unsigned i = 0; i < m; i++)
		for (unsigned j = 0; j < k; j++)
			for (unsigned c = 0; c < n; c++)
				p.sum[i * n + c] += p.a[i * k + j] * p.b[j * n + c];
	return p;
}

static void done(struct product *p)
{
	free(p->a);
	free(p->b);
	free(p->sum);
}

static void tile_weights(const struct product *p, unsigned first, unsigned k, int8_t *to)
{
	for (unsigned j = 0; j < k; j++)
		for (unsigned c = 0; c < p->n; c++)
			to[weight_at(INT8, k, j, c)] = p->b[(first + j) * p->n + c];
}

static int submit(const struct buffer *tasks, unsigned count, unsigned mask, unsigned domain)
{
	struct submit s = submit_of(tasks, count, mask);
	s.iommu_domain_id = domain;
	int result = ioctl(fd, SUBMIT, &s);
	return result == 0 && s.task_counter == count ? 0 : -1;
}

/* Sizes of the window, found by taking it. */
static void window(void)
{
	uint32_t handles[128];
	uint64_t cookies[128], low = 1ull << 32;
	unsigned count = 0;
	while (count < 128) {
		struct mem_create create = {.flags = CACHED, .size = 64u << 20};
		if (ioctl(fd, MEM_CREATE, &create)) {
			CHECK(errno == EFAULT);
			break;
		}
		CHECK(create.dma_addr + create.size <= low);
		low = create.dma_addr;
		cookies[count] = create.obj_addr;
		handles[count++] = create.handle;
	}
	printf("RESULT window of %u MiB\n", count * 64);
	CHECK(count == 63);
	while (count-- > 0) {
		struct mem_destroy destroy = {.handle = handles[count], .obj_addr = cookies[count]};
		CHECK(ioctl(fd, MEM_DESTROY, &destroy) == 0);
	}
}

/* More than the window, one after the other. */
static void stream(void)
{
	for (unsigned i = 0; i < 20; i++) {
		struct buffer b = make(fd, 256u << 20, CACHED, 0);
		((volatile char *)b.cpu)[i << 20] = 1;
		CHECK(sync_buffer(fd, &b, TO_DEVICE) == 0);
		drop(fd, &b);
	}
}

/* Two domains, alternating from product to product. */
static void domains(void)
{
	struct product p = made_up(4, 512, 64, 3);
	struct buffer sets[2][5];
	for (unsigned d = 0; d < 2; d++) {
		struct buffer *s = sets[d];
		s[0] = fresh(4096, 0, (int)d);
		s[1] = fresh(4096, KERNEL_MAPPING, (int)d);
		s[2] = fresh(p.m * p.k, 0, (int)d);
		s[3] = fresh(p.k * p.n, 0, (int)d);
		s[4] = fresh(p.m * p.n * 4, 0, (int)d);
		memcpy(s[2].cpu, p.a, p.m * p.k);
		tile_weights(&p, 0, p.k, s[3].cpu);
		unsigned amount = program(s[0].cpu, 0, INT8, p.m, p.k, p.n, (uint32_t)s[2].dma,
					  (uint32_t)s[3].dma, (uint32_t)s[4].dma, 0);
		*(struct task *)s[1].cpu = task(amount, s[0].dma);
		for (unsigned i = 0; i < 5; i++)
			CHECK(sync_buffer(fd, &s[i], TO_DEVICE) == 0);
	}
	for (unsigned i = 0; i < 50; i++) {
		struct buffer *s = sets[i % 2];
		memset(s[4].cpu, 0xee, p.m * p.n * 4);
		CHECK(sync_buffer(fd, &s[4], TO_DEVICE) == 0);
		CHECK(submit(&s[1], 1, 1, i % 2) == 0);
		CHECK(sync_buffer(fd, &s[4], FROM_DEVICE) == 0);
		CHECK(memcmp(s[4].cpu, p.sum, p.m * p.n * 4) == 0);
	}
	for (unsigned d = 0; d < 2; d++)
		for (unsigned i = 0; i < 5; i++)
			drop(fd, &sets[d][i]);
	done(&p);
}

/* Rows in programs of one chain; and K in slices, which the CPU adds. */
static void chains(unsigned m, unsigned k, unsigned rows, unsigned slice)
{
	struct product p = made_up(m, k, 96, k);
	unsigned programs = (m + rows - 1) / rows, slices = k / slice;
	struct buffer regcmd = fresh(4096 * programs * slices, 0, 0);
	struct buffer tasks = fresh(4096, KERNEL_MAPPING, 0);
	struct buffer in = fresh(m * k, 0, 0), weights = fresh(k * p.n, 0, 0);
	struct buffer out = fresh(m * p.n * 4 * slices, 0, 0);
	for (unsigned s = 0; s < slices; s++) {
		for (unsigned i = 0; i < m; i++)
			memcpy((char *)in.cpu + s * m * slice + i * slice, p.a + i * k + s * slice, slice);
		tile_weights(&p, s * slice, slice, (int8_t *)weights.cpu + s * slice * p.n);
	}
	for (unsigned t = 0; t < programs * slices; t++) {
		unsigned s = t / programs, first = t % programs * rows;
		unsigned here = first + rows > m ? m - first : rows;
		uint32_t next = t + 1 < programs * slices ? (uint32_t)regcmd.dma + 4096 * (t + 1) : 0;
		unsigned amount = program((uint64_t *)regcmd.cpu + 512 * t, 0, INT8, here, slice, p.n,
					  (uint32_t)in.dma + s * m * slice + first * slice,
					  (uint32_t)weights.dma + s * slice * p.n,
					  (uint32_t)out.dma + 4 * p.n * (s * m + first), next);
		((struct task *)tasks.cpu)[t] = task(amount, regcmd.dma + 4096 * t);
	}
	struct buffer *all[] = {&regcmd, &tasks, &in, &weights, &out};
	for (unsigned i = 0; i < 5; i++)
		CHECK(sync_buffer(fd, all[i], TO_DEVICE) == 0);
	CHECK(submit(&tasks, programs * slices, 1, 0) == 0);
	CHECK(sync_buffer(fd, &out, FROM_DEVICE) == 0);
	for (unsigned i = 0; i < m * p.n; i++) {
		int32_t sum = 0;
		for (unsigned s = 0; s < slices; s++)
			sum += ((int32_t *)out.cpu)[s * m * p.n + i];
		CHECK(sum == p.sum[i]);
	}
	for (unsigned i = 0; i < 5; i++)
		drop(fd, all[i]);
	done(&p);
}

/* A thread for each core, with buffers of its own and its columns of one product. */
static void *on_core(void *which)
{
	unsigned core = (unsigned)(uintptr_t)which;
	struct product p = made_up(16, 1024, 64, core + 7);
	struct buffer regcmd = fresh(4096, 0, 0), tasks = fresh(4096, KERNEL_MAPPING, 0);
	struct buffer in = fresh(p.m * p.k, 0, 0), weights = fresh(p.k * p.n, 0, 0);
	struct buffer out = fresh(p.m * p.n * 4, 0, 0);
	struct buffer *all[] = {&regcmd, &tasks, &in, &weights, &out};
	memcpy(in.cpu, p.a, p.m * p.k);
	tile_weights(&p, 0, p.k, weights.cpu);
	unsigned amount = program(regcmd.cpu, 0, INT8, p.m, p.k, p.n, (uint32_t)in.dma, (uint32_t)weights.dma,
				  (uint32_t)out.dma, 0);
	*(struct task *)tasks.cpu = task(amount, regcmd.dma);
	for (unsigned i = 0; i < 5; i++)
		CHECK(sync_buffer(fd, all[i], TO_DEVICE) == 0);
	for (unsigned i = 0; i < 10; i++) {
		CHECK(submit(&tasks, 1, 1u << core, 0) == 0);
		CHECK(sync_buffer(fd, &out, FROM_DEVICE) == 0);
		CHECK(memcmp(out.cpu, p.sum, p.m * p.n * 4) == 0);
		memset(out.cpu, 0xee, out.size);
		CHECK(sync_buffer(fd, &out, TO_DEVICE) == 0);
	}
	for (unsigned i = 0; i < 5; i++)
		drop(fd, all[i]);
	done(&p);
	return NULL;
}

static void cores(void)
{
	pthread_t threads[3];
	for (uintptr_t core = 0; core < 3; core++)
		CHECK(pthread_create(&threads[core], NULL, on_core, (void *)core) == 0);
	for (unsigned core = 0; core < 3; core++)
		CHECK(pthread_join(threads[core], NULL) == 0);
}

/* int4: rows of nibbles, a row alone and a batch that is counted twice. */
static void int4(unsigned m)
{
	unsigned k = 512, n = 128, seed = m, rows = m == 1 ? 1 : 2 * m;
	struct buffer regcmd = fresh(4096, 0, 0), tasks = fresh(4096, KERNEL_MAPPING, 0);
	struct buffer in = fresh(rows * k / 2, 0, 0), weights = fresh(k * n / 2, 0, 0);
	struct buffer out = fresh(4 * m * n * 2, 0, 0);
	struct buffer *all[] = {&regcmd, &tasks, &in, &weights, &out};
	int8_t *a = malloc(m * k), *b = malloc(k * n);
	for (unsigned i = 0; i < m * k; i++)
		a[i] = (int8_t)(value(&seed) % 8);
	for (unsigned i = 0; i < k * n; i++)
		b[i] = (int8_t)(value(&seed) % 8);
	for (unsigned i = 0; i < m * k; i++)
		((uint8_t *)in.cpu)[i / k * (m == 1 ? 1 : 2) * k / 2 + i % k / 2] |= (a[i] & 15) << i % 2 * 4;
	for (unsigned j = 0; j < k; j++)
		for (unsigned c = 0; c < n; c++) {
			size_t at = (((size_t)(c / 64) * (k / 32) + j / 32) * 64 + c % 64) * 32 + j % 32;
			((uint8_t *)weights.cpu)[at / 2] |= (b[j * n + c] & 15) << at % 2 * 4;
		}
	unsigned amount = program(regcmd.cpu, 0, INT8, rows, k, n, (uint32_t)in.dma, (uint32_t)weights.dma,
				  (uint32_t)out.dma, 0);
	/* What differs from a program of int8. */
	uint32_t notch = m == 1 ? 0 : (n / 4 - 1) << 16 | (n / 4 - 1);
	const uint32_t changes[][2] = {
		{0x100c, 0x360},     {0x1030, n * k / 2}, {0x1034, k / 2},  {0x1040, 0xb1},
		{0x1044, k / 128},   {0x107c, m == 1 ? 4 : k / 16},         {0x1080, 0x0ffffffd},
		{0x3010, 0x601},     {0x4010, 0x38000006}, {0x4038, notch}, {0x4050, 0x7fe},
		{0x405c, 0},
	};
	for (unsigned i = 0; i < amount; i++)
		for (unsigned c = 0; c < sizeof changes / sizeof *changes; c++)
			if ((((uint64_t *)regcmd.cpu)[i] & 0xffff) == changes[c][0])
				((uint64_t *)regcmd.cpu)[i] = (((uint64_t *)regcmd.cpu)[i] & 0xffff00000000ffffu) |
							      (uint64_t)changes[c][1] << 16;
	*(struct task *)tasks.cpu = task(amount, regcmd.dma);
	for (unsigned i = 0; i < 5; i++)
		CHECK(sync_buffer(fd, all[i], TO_DEVICE) == 0);
	CHECK(submit(&tasks, 1, 1, 0) == 0);
	CHECK(sync_buffer(fd, &out, FROM_DEVICE) == 0);
	for (unsigned i = 0; i < m; i++)
		for (unsigned c = 0; c < n; c++) {
			int sum = 0;
			for (unsigned j = 0; j < k; j++)
				sum += a[i * k + j] * b[j * n + c];
			size_t at = m == 1 ? c : (4 * i + 4 * m * (c / 64)) * 64 + c % 64;
			CHECK(((int16_t *)out.cpu)[at] == sum);
		}
	for (unsigned i = 0; i < 5; i++)
		drop(fd, all[i]);
	free(a);
	free(b);
}

/* Weights in a dma-heap's memory, filled before they are imported and again after. `wrong` asks for the
 * flags of a reader around the second filling; the product is then not that of what was filled in. */
static void import(int wrong)
{
	struct product first = made_up(4, 512, 64, 21), second = made_up(4, 512, 64, 22);
	struct heap_allocation heap_data = {.len = first.k * first.n, .fd_flags = O_RDWR | O_CLOEXEC};
	int heap = open("/dev/dma_heap/system", O_RDWR | O_CLOEXEC);
	CHECK(heap >= 0 && ioctl(heap, HEAP_ALLOC, &heap_data) == 0);
	int memory = (int)heap_data.fd;
	void *cpu = mmap(NULL, heap_data.len, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	CHECK(cpu != MAP_FAILED);
	uint64_t none = 4, start = 2, end = 4 | 2, read_end = 4 | 1;
	CHECK(ioctl(memory, BUF_SYNC, &none) == -1 && errno == EINVAL);
	CHECK(ioctl(memory, BUF_SYNC, &start) == 0);
	tile_weights(&first, 0, first.k, cpu);
	CHECK(ioctl(memory, BUF_SYNC, &end) == 0);
	struct prime prime = {.fd = memory};
	CHECK(ioctl(fd, PRIME_FD_TO_HANDLE, &prime) == 0);
	struct mem_create create = {.handle = prime.handle};
	CHECK(ioctl(fd, MEM_CREATE, &create) == 0 && create.dma_addr != 0);
	struct buffer regcmd = fresh(4096, 0, 0), tasks = fresh(4096, KERNEL_MAPPING, 0);
	struct buffer in = fresh(4 * 512, 0, 0), out = fresh(4 * 64 * 4, 0, 0);
	struct buffer *all[] = {&regcmd, &tasks, &in, &out};
	unsigned amount = program(regcmd.cpu, 0, INT8, 4, 512, 64, (uint32_t)in.dma, (uint32_t)create.dma_addr,
				  (uint32_t)out.dma, 0);
	*(struct task *)tasks.cpu = task(amount, regcmd.dma);
	for (int round = 0; round < 2; round++) {
		struct product *p = round ? &second : &first;
		memcpy(in.cpu, p->a, 4 * 512);
		if (round) {
			CHECK(ioctl(memory, BUF_SYNC, &start) == 0);
			tile_weights(p, 0, p->k, cpu);
			CHECK(ioctl(memory, BUF_SYNC, wrong ? &read_end : &end) == 0);
		}
		for (unsigned i = 0; i < 4; i++)
			CHECK(sync_buffer(fd, all[i], TO_DEVICE) == 0);
		CHECK(submit(&tasks, 1, 1, 0) == 0);
		CHECK(sync_buffer(fd, &out, FROM_DEVICE) == 0);
		CHECK((memcmp(out.cpu, p->sum, 4 * 64 * 4) == 0) == !(round && wrong));
	}
	for (unsigned i = 0; i < 4; i++)
		drop(fd, all[i]);
	CHECK(munmap(cpu, heap_data.len) == 0);
	struct mem_destroy destroy = {.handle = create.handle, .obj_addr = create.obj_addr};
	CHECK(ioctl(fd, MEM_DESTROY, &destroy) == 0 && close(memory) == 0 && close(heap) == 0);
	done(&first);
	done(&second);
}

/* Eight tasks whose programs name no next one: a timeout with a counter of 0, and the next product is right. */
static void unlinked(void)
{
	struct product p = made_up(1, 64, 32, 5);
	struct buffer regcmd = fresh(4096 * 8, 0, 0), tasks = fresh(4096, KERNEL_MAPPING, 0);
	struct buffer in = fresh(p.k, 0, 0), weights = fresh(p.k * p.n, 0, 0), out = fresh(p.n * 4, 0, 0);
	struct buffer *all[] = {&regcmd, &tasks, &in, &weights, &out};
	memcpy(in.cpu, p.a, p.k);
	tile_weights(&p, 0, p.k, weights.cpu);
	for (unsigned t = 0; t < 8; t++) {
		unsigned amount = program((uint64_t *)regcmd.cpu + 512 * t, 0, INT8, 1, p.k, p.n, (uint32_t)in.dma,
					  (uint32_t)weights.dma, (uint32_t)out.dma, 0);
		((struct task *)tasks.cpu)[t] = task(amount, regcmd.dma + 4096 * t);
	}
	for (unsigned i = 0; i < 5; i++)
		CHECK(sync_buffer(fd, all[i], TO_DEVICE) == 0);
	struct submit s = submit_of(&tasks, 8, 1);
	s.timeout = 200;
	CHECK(ioctl(fd, SUBMIT, &s) == -1 && errno == ETIMEDOUT && s.task_counter == 0);
	struct action reset = {.flags = 6};
	CHECK(ioctl(fd, ACTION, &reset) == 0);
	memset(out.cpu, 0xee, out.size);
	CHECK(sync_buffer(fd, &out, TO_DEVICE) == 0 && submit(&tasks, 1, 1, 0) == 0);
	CHECK(sync_buffer(fd, &out, FROM_DEVICE) == 0);
	CHECK(memcmp(out.cpu, p.sum, p.n * 4) == 0);
	for (unsigned i = 0; i < 5; i++)
		drop(fd, all[i]);
	done(&p);
}

/* Results that are polled for, and buffers that go once they are seen. */
static void polled(void)
{
	struct product p = made_up(1, 64, 32, 6);
	struct buffer regcmd = fresh(4096, 0, 0), tasks = fresh(4096, KERNEL_MAPPING, 0);
	struct buffer in = fresh(p.k, 0, 0), weights = fresh(p.k * p.n, 0, 0), out = fresh(p.n * 4, 0, 0);
	struct buffer *all[] = {&in, &weights, &out, &regcmd, &tasks};
	memcpy(in.cpu, p.a, p.k);
	tile_weights(&p, 0, p.k, weights.cpu);
	volatile int32_t *last = (volatile int32_t *)out.cpu + p.n - 1;
	*last = 0x7fffffff;
	unsigned amount = program(regcmd.cpu, 0, INT8, 1, p.k, p.n, (uint32_t)in.dma, (uint32_t)weights.dma,
				  (uint32_t)out.dma, 0);
	*(struct task *)tasks.cpu = task(amount, regcmd.dma);
	for (unsigned i = 0; i < 5; i++)
		CHECK(sync_buffer(fd, all[i], TO_DEVICE) == 0);
	struct submit s = submit_of(&tasks, 1, 1);
	s.flags |= JOB_NONBLOCK;
	CHECK(ioctl(fd, SUBMIT, &s) == 0);
	for (unsigned i = 0; *last == 0x7fffffff; i++) {
		CHECK(i < 5000);
		usleep(1000);
	}
	CHECK(memcmp(out.cpu, p.sum, p.n * 4) == 0);
	for (unsigned i = 0; i < 5; i++)
		drop(fd, all[i]);
	done(&p);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	begin();
	const char *part = argv[1];
	if (!strcmp(part, "window"))
		window();
	else if (!strcmp(part, "stream"))
		stream();
	else if (!strcmp(part, "domains"))
		domains();
	else if (!strcmp(part, "prefill"))
		chains(150, 512, 64, 512);
	else if (!strcmp(part, "k_split"))
		chains(8, 3072, 8, 1024);
	else if (!strcmp(part, "cores"))
		cores();
	else if (!strcmp(part, "int4")) {
		int4(1);
		int4(8);
	} else if (!strcmp(part, "import"))
		import(0);
	else if (!strcmp(part, "import_as_a_reader"))
		import(1);
	else if (!strcmp(part, "unlinked"))
		unlinked();
	else if (!strcmp(part, "polled"))
		polled();
	else
		return 2;
	CHECK(close(fd) == 0);
	return 0;
}
