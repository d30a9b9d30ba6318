/* process NAME: what programs do with descriptors, mappings, forks and files. */
#define _GNU_SOURCE
#include "npu.h"
#include <dirent.h>
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>

static const uint32_t CACHED = NON_CONTIGUOUS | CACHEABLE | UNALIGNED;

static int opened(void)
{
	int fd = open("/dev/dri/card1", O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0);
	return fd;
}

static int driver_version(int fd)
{
	struct action action = {.flags = 1};
	return ioctl(fd, ACTION, &action) == 0 ? (int)action.value : -errno;
}

static void descriptors(void)
{
	int fd = opened(), ordinary = open("/dev/null", O_RDONLY);
	CHECK(ordinary >= 0);
	int copy = dup(fd);
	CHECK(copy >= 0 && close(fd) == 0);
	CHECK(driver_version(fd) == -EBADF);
	CHECK(driver_version(copy) == 908);
	int high = fcntl(copy, F_DUPFD_CLOEXEC, 100);
	CHECK(high >= 100 && driver_version(high) == 908);
	CHECK(dup2(ordinary, high) == high && driver_version(high) == -ENOTTY);
	CHECK(dup3(copy, high, O_CLOEXEC) == high && driver_version(high) == 908);
	CHECK(dup2(high, high) == high && driver_version(high) == 908);
	CHECK(dup2(1000, high) == -1 && errno == EBADF && driver_version(high) == 908);
	CHECK(close_range(100, 200, 0) == 0 && driver_version(high) == -EBADF);
	/* The numbers are free again for ordinary files. */
	CHECK(dup2(ordinary, high) == high && driver_version(high) == -ENOTTY);
	struct pollfd poll_copy = {.fd = copy, .events = POLLIN};
	CHECK(poll(&poll_copy, 1, 0) >= 0 && !(poll_copy.revents & POLLNVAL));
	CHECK(close(copy) == 0 && close(copy) == -1 && errno == EBADF);
	errno = 77;
	fd = opened();
	CHECK(errno == 77 && close(fd) == 0);
}

static void stats(void)
{
	struct stat st;
	int fd = opened();
	CHECK(fstat(fd, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == makedev(226, 1));
	CHECK(stat("/dev/dri/renderD129", &st) == 0 && st.st_rdev == makedev(226, 129));
	CHECK(lstat("/dev/dri/card1", &st) == 0 && S_ISCHR(st.st_mode));
	CHECK(fstatat(AT_FDCWD, "/proc/rknpu/load", &st, 0) == 0 && S_ISREG(st.st_mode));
	struct statx sx;
	CHECK(statx(AT_FDCWD, "/dev/dri/card1", 0, STATX_BASIC_STATS, &sx) == 0);
	CHECK(sx.stx_rdev_major == 226 && sx.stx_rdev_minor == 1);
	CHECK(access("/dev/dri/card1", R_OK | W_OK) == 0);
	CHECK(access("/dev/dri/card1", X_OK) == -1 && errno == EACCES);
	CHECK(access("/dev/dri/card7", F_OK) == -1 && errno == ENOENT);
	CHECK(open("/dev/dri/card1", O_RDWR | O_DIRECTORY) == -1 && errno == ENOTDIR);
	CHECK(close(fd) == 0);
}

static void texts(void)
{
	char line[128] = {0};
	FILE *load = fopen("/sys/kernel/debug/rknpu/load", "r");
	CHECK(load && fgets(line, sizeof line, load) && fclose(load) == 0);
	CHECK(!strcmp(line, "NPU load:  Core0:  0%, Core1:  0%, Core2:  0%,\n"));
	int version = open("/proc/rknpu/version", O_RDONLY);
	CHECK(version >= 0 && read(version, line, sizeof line) == 21 && close(version) == 0);
	CHECK(!strncmp(line, "RKNPU driver: v0.9.8\n", 21));
	FILE *own = fopen("/proc/self/status", "r");
	CHECK(own && fgets(line, sizeof line, own) && !strncmp(line, "Name:", 5) && fclose(own) == 0);
}

static void mappings(void)
{
	int fd = opened();
	struct buffer b = make(fd, 4 * 4096, CACHED, 0);
	((char *)b.cpu)[4096] = 42;
	/* Part of it goes; the rest, and the buffer, stay. */
	CHECK(munmap(b.cpu, 4096) == 0);
	CHECK(((char *)b.cpu)[4096] == 42);
	CHECK(destroy(fd, &b) == 0);
	CHECK(((char *)b.cpu)[4096] == 42);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0x100000000) == MAP_FAILED && errno == EACCES);
	char *rest = (char *)b.cpu + 4096;
	CHECK(mremap(rest, 3 * 4096, 4 * 4096, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
	char *room = mmap(NULL, 3 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *moved = mremap(rest, 3 * 4096, 3 * 4096, MREMAP_MAYMOVE | MREMAP_FIXED, room);
	CHECK(moved == room && moved[0] == 42);
	CHECK(close(fd) == 0 && moved[0] == 42);
	/* A mapping put over it ends it. */
	CHECK(mmap(moved, 3 * 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == moved);
	CHECK(moved[0] == 0);
	CHECK(munmap(moved, 3 * 4096) == 0);
}

static void forks(void)
{
	int fd = opened();
	struct buffer b = make(fd, 4096, CACHED, 0);
	*(char *)b.cpu = 1;
	pid_t child = fork();
	if (child == 0) {
		struct mem_create query = {.handle = b.handle};
		int same = ioctl(fd, MEM_CREATE, &query) == 0 && query.dma_addr == b.dma;
		if (!same)
			_exit(3);
		*(volatile char *)b.cpu = 2;
		_exit(4);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	CHECK(*(char *)b.cpu == 1);
	drop(fd, &b);
	CHECK(close(fd) == 0);
}

static void *allocate(void *arg)
{
	int fd = *(int *)arg;
	for (int i = 0; i < 200; i++) {
		struct buffer b = make(fd, 4096 * (size_t)(1 + i % 3), CACHED, 0);
		memset(b.cpu, i, b.size);
		CHECK(sync_buffer(fd, &b, TO_DEVICE) == 0);
		drop(fd, &b);
		int other = open("/dev/null", O_RDONLY);
		CHECK(other >= 0 && close(other) == 0);
	}
	return NULL;
}

static void threads(void)
{
	int fd = opened();
	pthread_t thread[4];
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&thread[i], NULL, allocate, &fd) == 0);
	for (int i = 0; i < 20; i++) {
		pid_t child = fork();
		if (child == 0)
			_exit(0);
		CHECK(child > 0 && waitpid(child, NULL, 0) == child);
	}
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(thread[i], NULL) == 0);
	CHECK(close(fd) == 0);
}

static void sharing(void)
{
	int fd = opened();
	struct buffer b = make(fd, 8192, CACHED, 0);
	((char *)b.cpu)[5000] = 7;
	struct prime out = {.handle = b.handle, .flags = O_RDWR | O_CLOEXEC};
	CHECK(ioctl(fd, PRIME_HANDLE_TO_FD, &out) == 0);
	char *same = mmap(NULL, 8192, PROT_READ, MAP_SHARED, out.fd, 0);
	CHECK(same != MAP_FAILED && same[5000] == 7);
	uint64_t start = 3; /* to read and write */
	CHECK(ioctl(out.fd, BUF_SYNC, &start) == 0);
	int second = opened();
	struct prime in = {.fd = out.fd};
	CHECK(ioctl(second, PRIME_FD_TO_HANDLE, &in) == 0);
	struct mem_create query = {.handle = in.handle};
	CHECK(ioctl(second, MEM_CREATE, &query) == 0 && query.dma_addr == b.dma);
	CHECK(munmap(same, 8192) == 0 && close(out.fd) == 0 && close(second) == 0);
	drop(fd, &b);

	int heap = open("/dev/dma_heap/system", O_RDWR | O_CLOEXEC);
	CHECK(heap >= 0);
	struct heap_allocation allocation = {.len = 65536, .fd_flags = O_RDWR | O_CLOEXEC};
	CHECK(ioctl(heap, HEAP_ALLOC, &allocation) == 0);
	int buf = (int)allocation.fd;
	char *cpu = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, buf, 0);
	CHECK(cpu != MAP_FAILED);
	cpu[0] = 1;
	CHECK(ioctl(buf, BUF_SYNC, &start) == 0);
	struct prime foreign = {.fd = buf};
	CHECK(ioctl(fd, PRIME_FD_TO_HANDLE, &foreign) == 0);
	struct mem_create imported = {.handle = foreign.handle};
	CHECK(ioctl(fd, MEM_CREATE, &imported) == 0 && imported.dma_addr && imported.size == 65536);
	struct gem_close gone = {.handle = foreign.handle};
	CHECK(ioctl(fd, GEM_CLOSE, &gone) == 0);
	struct prime ordinary = {.fd = open("/dev/null", O_RDONLY)};
	CHECK(ioctl(fd, PRIME_FD_TO_HANDLE, &ordinary) == -1 && errno == EINVAL);
	CHECK(munmap(cpu, 65536) == 0 && close(buf) == 0 && close(heap) == 0 && close(fd) == 0);
}

static int listed(const char *directory, const char *name)
{
	DIR *stream = opendir(directory);
	CHECK(stream);
	int count = 0;
	for (int round = 0; round < 2; round++) {
		count = 0;
		for (struct dirent *entry; (entry = readdir(stream));)
			count += !strcmp(entry->d_name, name);
		rewinddir(stream);
	}
	CHECK(closedir(stream) == 0);
	return count;
}

static void directories(void)
{
	struct stat st;
	CHECK(listed("/dev/dri", "card1") == 1 && listed("/dev/dri/", "renderD129") == 1);
	CHECK(listed("/dev/dri", "by-path") == 1 && listed("/dev/dri", "null") == 0);
	CHECK(listed("/sys/kernel/debug/rknpu", "load") == 1);
	CHECK(listed("/sys/class/devfreq", "fdab0000.npu") == 1);
	CHECK(listed("/dev", "null") == 1 && listed("/dev", "card1") == 0);
	CHECK(stat("/dev/dri", &st) == 0 && S_ISDIR(st.st_mode));
	CHECK(access("/proc/rknpu", R_OK) == 0);
	CHECK(opendir("/dev/dri/card1") == NULL);
}

/* As ctypes does: the C library's functions by a handle of it. */
static void lookup(void)
{
	void *c = dlopen("libc.so.6", RTLD_NOW);
	CHECK(c);
	int (*by_open)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(c, "open");
	int (*by_ioctl)(int, unsigned long, ...) =
		(int (*)(int, unsigned long, ...))dlsym(c, "ioctl");
	void *(*by_mmap)(void *, size_t, int, int, int, off_t) =
		(void *(*)(void *, size_t, int, int, int, off_t))dlsym(c, "mmap");
	int (*by_munmap)(void *, size_t) = (int (*)(void *, size_t))dlsym(c, "munmap");
	CHECK(by_open && by_ioctl && by_mmap && by_munmap);
	int fd = by_open("/dev/dri/card1", O_RDWR | O_CLOEXEC);
	struct mem_create create = {.flags = CACHED, .size = 8192};
	CHECK(fd >= 0 && by_ioctl(fd, MEM_CREATE, &create) == 0);
	struct mem_map map = {.handle = create.handle};
	CHECK(by_ioctl(fd, MEM_MAP, &map) == 0);
	char *cpu = by_mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)map.offset);
	CHECK(cpu != MAP_FAILED);
	cpu[8191] = 1;
	CHECK(by_munmap(cpu, 8192) == 0);
	struct gem_close gone = {.handle = create.handle};
	CHECK(by_ioctl(fd, GEM_CLOSE, &gone) == 0 && close(fd) == 0);
	/* What is not replaced, and what follows from who asks, is the C library's. */
	CHECK(dlsym(c, "strlen") && dlsym(RTLD_NEXT, "strlen") && dlsym(RTLD_DEFAULT, "main") == NULL);
	CHECK(dlsym(c, "no_such_function") == NULL);
	CHECK(dlclose(c) == 0);
}

/* Past every function of the C library: refused at once, where it would be a SIGBUS later. */
static void past_the_library(void)
{
	int fd = opened();
	struct buffer b = make(fd, 8192, CACHED, 0);
	long at = syscall(SYS_mmap, NULL, 8192L, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0L);
	CHECK(at == -1 && errno == EPERM);
	drop(fd, &b);
	CHECK(close(fd) == 0);
}

static int left_open(void)
{
	int fd = opened();
	make(fd, 8192, CACHED, 0);
	return fd;
}

static void leaves(void)
{
	left_open();
	_exit(0);
}

static void child_leaves(void)
{
	pid_t child = fork();
	if (child == 0) {
		left_open();
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, NULL, 0) == child);
}

static void becomes_another(void)
{
	char *arguments[] = {"true", NULL};
	/* A child that only becomes another program has nothing to say. */
	int fd = left_open();
	pid_t child = vfork();
	if (child == 0) {
		execvp("true", arguments);
		_exit(1);
	}
	int status = 1;
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	CHECK(execv("/no/such/program", arguments) == -1 && errno == ENOENT);
	CHECK(driver_version(fd) == 908);
	execvp("true", arguments);
}

/* As above, by the functions that take arguments one by one. */
static void becomes_by_list(void)
{
	char *variables[] = {"A=1", NULL};
	int fd = left_open();
	CHECK(execl("/no/such/program", "a", "b", "c", "d", "e", "f", "g", "h", (char *)NULL) == -1);
	CHECK(errno == ENOENT);
	CHECK(execlp("no-such-program", "a", (char *)NULL) == -1 && errno == ENOENT);
	CHECK(execle("/no/such/program", "a", "b", (char *)NULL, variables) == -1 && errno == ENOENT);
	CHECK(driver_version(fd) == 908);
	execle("/bin/sh", "sh", "-c", "test \"$A$0$1$2$3$4$5$6\" = 1abcdefg", "a", "b", "c", "d", "e", "f", "g",
	       (char *)NULL, variables);
}

static void soc(void)
{
	char text[64];
	FILE *file = fopen("/proc/device-tree/compatible", "r");
	CHECK(file);
	size_t len = fread(text, 1, sizeof text, file);
	CHECK(fclose(file) == 0 && len > 16 && text[len - 1] == 0);
	CHECK(!strcmp(text + strlen(text) + 1, "rockchip,rk3588"));
	file = fopen("/sys/class/devfreq/dmc/governor", "r");
	CHECK(file && fgets(text, sizeof text, file) && !strcmp(text, "performance\n"));
	CHECK(fclose(file) == 0);
	CHECK(lgetxattr("/dev/dri/card1", "security.selinux", text, sizeof text) == -1);
	CHECK(errno == ENODATA && listxattr("/dev/dri", text, sizeof text) == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	struct {
		const char *name;
		void (*run)(void);
	} all[] = {
		{"descriptors", descriptors}, {"stats", stats},     {"texts", texts},
		{"mappings", mappings},	      {"forks", forks},     {"threads", threads},
		{"sharing", sharing},	      {"directories", directories},
		{"lookup", lookup},	      {"past_the_library", past_the_library},
		{"leaves", leaves},	      {"child_leaves", child_leaves},
		{"becomes_another", becomes_another}, {"becomes_by_list", becomes_by_list}, {"soc", soc},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (!strcmp(argv[1], all[i].name)) {
			all[i].run();
			printf("%s: as expected\n", argv[1]);
			return 0;
		}
	printf("no test is called %s\n", argv[1]);
	return 2;
}
