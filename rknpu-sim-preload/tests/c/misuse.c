/* misuse NAME: a small int8 matmul with one mistake. */
#include "npu.h"

static int is(const char *what, const char *name) { return !strcmp(what, name); }

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	const char *what = argv[1];
	int fd = open("/dev/dri/renderD129", O_RDWR);
	CHECK(fd >= 0);
	uint32_t cached = NON_CONTIGUOUS | CACHEABLE | UNALIGNED;
	int elsewhere = is(what, "other_domain");
	struct buffer regcmd = make(fd, 4096, cached, 0);
	struct buffer tasks =
		make(fd, 4096, is(what, "no_kernel_mapping") ? cached : cached | KERNEL_MAPPING, 0);
	struct buffer in = make(fd, 4096, cached, 0);
	struct buffer weights = make(fd, 4096, cached, elsewhere);
	struct buffer out = make(fd, 4096, cached, 0);
	struct buffer *all[] = {&regcmd, &tasks, &in, &weights, &out};
	memset(in.cpu, 1, in.size);
	memset(weights.cpu, 1, weights.size);
	memset(out.cpu, 0, out.size);
	uint32_t input = is(what, "unmapped_input") ? 0x1000 : (uint32_t)in.dma;
	unsigned amount = program(regcmd.cpu, 0, INT8, 4, 64, 32, input, (uint32_t)weights.dma,
				  (uint32_t)out.dma, 0);
	if (is(what, "undecodable"))
		((uint64_t *)regcmd.cpu)[7] = 0x0999000000010000u;
	struct task one = task(amount, regcmd.dma);
	if (is(what, "wrong_mask"))
		one.int_mask = 0xc00;
	if (is(what, "half_mask"))
		one.int_mask = 0x100;
	*(struct task *)tasks.cpu = one;
	for (int i = 0; i < 5; i++)
		if (!(all[i] == &in && is(what, "forgotten_sync")))
			CHECK(sync_buffer(fd, all[i], TO_DEVICE | (i == 1 ? FROM_DEVICE : 0)) == 0);

	struct submit submit = submit_of(&tasks, 1, 1);
	if (is(what, "stale_sync")) {
		CHECK(munmap(in.cpu, in.size) == 0);
		CHECK(destroy(fd, &in) == 0);
		printf("sync: %d\n", sync_buffer(fd, &in, TO_DEVICE));
		return 0;
	}
	if (is(what, "stale_tasks")) {
		CHECK(munmap(tasks.cpu, tasks.size) == 0);
		CHECK(destroy(fd, &tasks) == 0);
	}
	if (is(what, "too_many_tasks"))
		submit.subcore[0].number = submit.task_number = 200;
	if (is(what, "submitted_elsewhere")) {
		/* Domain 1 is made by its first buffer. */
		struct buffer there = make(fd, 4096, cached, 1);
		drop(fd, &there);
		submit.iommu_domain_id = 1;
	}
	if (is(what, "no_pc"))
		submit.flags = 0;
	if (is(what, "freed_under_job")) {
		submit.flags |= JOB_NONBLOCK;
		CHECK(ioctl(fd, SUBMIT, &submit) == 0);
		CHECK(munmap(weights.cpu, weights.size) == 0);
		CHECK(destroy(fd, &weights) == 0);
		usleep(100000);
		return 0;
	}
	int result = ioctl(fd, SUBMIT, &submit);
	printf("submit: %d errno %d\n", result, result ? errno : 0);
	if (is(what, "left_behind"))
		return 0;
	if (!is(what, "unfetched"))
		CHECK(sync_buffer(fd, &out, FROM_DEVICE) == 0);
	for (int i = 0; i < 5; i++)
		if (!(all[i] == &tasks && is(what, "stale_tasks")))
			drop(fd, all[i]);
	close(fd);
	return 0;
}
