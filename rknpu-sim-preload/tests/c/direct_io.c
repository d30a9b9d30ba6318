/* direct_io FILE FLAGS THROUGH: what of a mapped object the kernel pins. FILE holds 64 KiB of a pattern, on a disk
 * with direct I/O; FLAGS are those of MEM_CREATE; THROUGH is drm or dma-buf. One line for each call: its name, its
 * errno's name, what it returned, and whether the data are right. */
#define _GNU_SOURCE
#include "npu.h"
#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { SIZE = 65536, PAGE = 4096 };
static uint8_t pattern[SIZE];

static void say(const char *name, ssize_t result, const uint8_t *data)
{
	const char *error = "0";
	if (result < 0)
		error = errno == EFAULT ? "EFAULT" : errno == EINVAL ? "EINVAL" : strerror(errno);
	printf("%s\t%s", name, error);
	if (result >= 0)
		printf("\t%zd", result);
	if (result > 0 && data)
		printf("\t%s", memcmp(data, pattern, (size_t)result) ? "wrong" : "right");
	printf("\n");
}

static void from_file(const char *name, int fd, uint8_t *to, size_t len)
{
	ssize_t result = pread(fd, to, len, 0);
	say(name, result, to);
	/* Nothing of it is to be taken for the next one's. */
	if (result > 0)
		memset(to, 0, (size_t)result);
}

/* One read by a submission queue. */
static void by_ring(int file, uint8_t *to)
{
	struct io_uring_params p = {0};
	int ring = (int)syscall(SYS_io_uring_setup, 4, &p);
	if (ring < 0) {
		printf("no io_uring: %s\n", strerror(errno));
		return;
	}
	size_t len = p.sq_off.array + p.sq_entries * 4;
	size_t done = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
	int both = PROT_READ | PROT_WRITE;
	uint8_t *sq = mmap(NULL, len, both, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
	uint8_t *cq = mmap(NULL, done, both, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_CQ_RING);
	struct io_uring_sqe *sqe = mmap(NULL, p.sq_entries * sizeof *sqe, both,
					MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
	CHECK(sq != MAP_FAILED && cq != MAP_FAILED && (void *)sqe != MAP_FAILED);
	*sqe = (struct io_uring_sqe){
		.opcode = IORING_OP_READ, .fd = file, .addr = (uintptr_t)to, .len = SIZE};
	((uint32_t *)(sq + p.sq_off.array))[0] = 0;
	__atomic_store_n((uint32_t *)(sq + p.sq_off.tail), 1, __ATOMIC_RELEASE);
	CHECK(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
	int result = ((struct io_uring_cqe *)(cq + p.cq_off.cqes))[0].res;
	errno = -result;
	say("io_uring READ O_DIRECT", result, to);
	struct iovec whole = {to, SIZE};
	say("io_uring REGISTER_BUFFERS",
	    syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &whole, 1), NULL);
	close(ring);
}

int main(int count, char **arguments)
{
	CHECK(count == 4);
	for (int i = 0; i < SIZE; i++)
		pattern[i] = (uint8_t)(i ^ i >> 8 ^ 0x5a);
	int fd = open("/dev/dri/card1", O_RDWR | O_CLOEXEC);
	int direct = open(arguments[1], O_RDWR | O_DIRECT), plain = open(arguments[1], O_RDWR);
	CHECK(fd >= 0 && direct >= 0 && plain >= 0);
	/* A probe of the host: without it nothing stands for memory that can't be pinned. */
	int secret = (int)syscall(447 /* memfd_secret */, 0);
	if (secret < 0)
		printf("no memfd_secret: %s\n", strerror(errno));
	else
		close(secret);
	struct buffer b = make(fd, SIZE, (uint32_t)strtoul(arguments[2], NULL, 0), 0);
	uint8_t *at = b.cpu;
	int exported = -1;
	if (!strcmp(arguments[3], "dma-buf")) {
		struct prime export = {.handle = b.handle, .flags = O_RDWR | O_CLOEXEC};
		CHECK(ioctl(fd, PRIME_HANDLE_TO_FD, &export) == 0);
		exported = export.fd;
		at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, exported, 0);
		CHECK(at != MAP_FAILED);
	}
	memset(at, 0, SIZE);
	from_file("pread O_DIRECT block 4 KiB", direct, at, PAGE);
	from_file("pread O_DIRECT block whole object", direct, at, SIZE);
	from_file("pread O_DIRECT ext4 file whole object", direct, at, SIZE);
	from_file("pread buffered", plain, at, SIZE);
	from_file("pread O_DIRECT at buffer+512 (512-aligned)", direct, at + 512, PAGE);
	memcpy(at, pattern, PAGE);
	say("pwrite O_DIRECT from the object to ext4", pwrite(direct, at, PAGE, 0), NULL);
	memset(at, 0, PAGE);
	by_ring(direct, at);
	for (int gift = 0; gift < 2; gift++) {
		int ends[2];
		CHECK(pipe(ends) == 0);
		struct iovec page = {at, PAGE};
		say(gift ? "vmsplice GIFT" : "vmsplice object -> pipe",
		    vmsplice(ends[1], &page, 1, gift ? SPLICE_F_GIFT : 0), NULL);
		close(ends[0]);
		close(ends[1]);
	}
	uint8_t copy[64];
	struct iovec here = {copy, sizeof copy}, there = {at, sizeof copy};
	say("process_vm_readv", process_vm_readv(getpid(), &here, 1, &there, 1, 0), NULL);
	int dropped = madvise(at, SIZE, MADV_DONTNEED);
	say("MADV_DONTNEED", dropped, NULL);
	if (dropped == 0) {
		from_file("pread O_DIRECT after DONTNEED, untouched", direct, at, PAGE);
		memset(at, 0, SIZE);
		from_file("pread O_DIRECT after DONTNEED and a touch", direct, at, PAGE);
		from_file("pread buffered after that", plain, at, PAGE);
	}
	/* What is mapped anew is whole again, also where the old mapping was. */
	CHECK(munmap(at, SIZE) == 0);
	if (exported >= 0) {
		CHECK(close(exported) == 0);
		drop(fd, &b);
	} else
		CHECK(destroy(fd, &b) == 0);
	uint8_t *own = mmap(at, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(own != MAP_FAILED && pread(direct, own, SIZE, 0) == SIZE);
	CHECK(!memcmp(own, pattern, SIZE));
	CHECK(close(fd) == 0);
	return 0;
}
