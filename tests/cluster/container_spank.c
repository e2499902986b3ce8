/* A SPANK plug-in that does to a task what pyxis and enroot do, for a Slurm without them.
 *
 * As pyxis (slurm_spank_task_init): as the user, namespaces of users, with the user's own ids, of mounts and of
 * cgroups; another root, which is read-only; the mounts of the job; the variables and the folder of the image; or the
 * namespaces of a container of that name that runs; errors in pyxis' words. As enroot (conf/mounts): /proc, /sys,
 * /dev and with it /dev/shm are the node's, /tmp is new.
 *
 * The image is a text file: "bind PATH" and "link PATH TARGET" are its files, "env NAME=VALUE" its variables,
 * "workdir PATH" its folder. Compiled with -DSLURM_VERSION_NUMBER=0xYYMM00, since Slurm loads no plug-in of another
 * release; what it needs of slurm/spank.h (22.05) stands here, so no package of headers is needed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct spank_handle *spank_t;
struct spank_option {
    char *name, *arginfo, *usage;
    int has_arg, val;
    int (*cb)(int val, const char *optarg, int remote);
};
enum { S_JOB_ID = 2 };
extern int spank_option_register(spank_t, struct spank_option *);
extern int spank_get_item(spank_t, int, ...);
extern int spank_setenv(spank_t, const char *, const char *, int);
extern void slurm_error(const char *, ...) __attribute__((format(printf, 1, 2)));
extern void slurm_spank_log(const char *, ...) __attribute__((format(printf, 1, 2)));

const char plugin_name[] = "container_stand_in";
const char plugin_type[] = "spank";
const unsigned int plugin_version = SLURM_VERSION_NUMBER;
const unsigned int spank_plugin_version = 1;

enum { IMAGE, MOUNTS, NAME, IDS };
static char *given[4];
static char workdir[4096] = "/";

static int take(int which, const char *value, int remote) {
    (void)remote;
    given[which] = strdup(value ? value : "");
    return 0;
}

static struct spank_option options[] = {
    {"container-image", "PATH", "the image", 1, IMAGE, take},
    {"container-mounts", "SRC:DST,...", "bind mounts", 1, MOUNTS, take},
    {"container-name", "NAME", "the container to make or to join", 1, NAME, take},
    {"no-container-remap-root", NULL, "keep the user's ids", 0, IDS, take},
};

int slurm_spank_init(spank_t sp, int ac, char **av) {
    (void)ac, (void)av;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (spank_option_register(sp, &options[i]))
            return -1;
    return 0;
}

static int failed(const char *what, const char *path) {
    slurm_error("pyxis:     enroot-mount: failed to %s: %s: %s", what, path, strerror(errno));
    slurm_error("pyxis: couldn't start container");
    return -1;
}

static int put(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    int done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return done ? 0 : -1;
}

/* Make the folders around a path, and the path itself as a folder or a file. */
static void make(const char *path, int folder) {
    char made[8192];
    snprintf(made, sizeof made, "%s", path);
    for (char *slash = strchr(made + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(made, 0755);
        *slash = '/';
    }
    if (folder)
        mkdir(made, 0755);
    else
        close(open(made, O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
}

static int bind_at(const char *root, const char *source, const char *target) {
    char inside[8192];
    struct stat found;
    if (stat(source, &found))
        return failed("mount", source);
    snprintf(inside, sizeof inside, "%s%s", root, target);
    make(inside, S_ISDIR(found.st_mode));
    return mount(source, inside, NULL, MS_BIND | MS_REC, NULL) ? failed("mount", source) : 0;
}

/* Only variables and folder of the image, if its files are there already (root is NULL). */
static int read_image(spank_t sp, const char *root) {
    char line[8192], path[8192];
    FILE *image = fopen(given[IMAGE], "re");
    if (!image) {
        slurm_error("pyxis: child 1 failed with error code: 1");
        slurm_error("pyxis: failed to create container filesystem");
        slurm_error("pyxis: printing enroot log file:");
        slurm_error("pyxis:     [ERROR] No such file or directory: %s", given[IMAGE]);
        return -1;
    }
    int done = 0;
    while (!done && fgets(line, sizeof line, image)) {
        line[strcspn(line, "\n")] = 0;
        char *value = strchr(line, ' ');
        if (!value)
            continue;
        *value++ = 0;
        if (!strcmp(line, "env")) {
            char *equals = strchr(value, '=');
            *equals = 0;
            spank_setenv(sp, value, equals + 1, 1);
        } else if (!strcmp(line, "workdir")) {
            snprintf(workdir, sizeof workdir, "%s", value);
        } else if (root && !strcmp(line, "bind")) {
            done = bind_at(root, value, value);
        } else if (root && !strcmp(line, "link")) {
            char *target = strchr(value, ' ');
            *target++ = 0;
            snprintf(path, sizeof path, "%s%s", root, value);
            if (symlink(target, path))
                done = failed("link", path);
        }
    }
    fclose(image);
    return done;
}

static int mount_given(const char *root) {
    char *list = strdup(given[MOUNTS] ? given[MOUNTS] : "");
    for (char *item; (item = strsep(&list, ","));) {
        char *source = strsep(&item, ":"), *target = item ? strsep(&item, ":") : source;
        if (*source && bind_at(root, source, target))
            return -1;
    }
    return 0;
}

static int start(spank_t sp, const char *root) {
    char text[4096], path[8192];
    uid_t uid = getuid();
    gid_t gid = getgid();
    struct passwd *user = getpwuid(uid);
    char *home = strdup(user ? user->pw_dir : "/");
    prctl(PR_SET_DUMPABLE, 1); /* else the maps are root's */
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
        return failed("unshare", "namespaces");
    put("/proc/self/setgroups", "deny");
    snprintf(text, sizeof text, "%u %u 1", uid, uid);
    int mapped = put("/proc/self/uid_map", text);
    snprintf(text, sizeof text, "%u %u 1", gid, gid);
    if (mapped || put("/proc/self/gid_map", text))
        return failed("map", "ids");
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("tmpfs", root, "tmpfs", 0, "mode=755"))
        return failed("mount", root);
    if (read_image(sp, root))
        return -1;
    const char *own[] = {"/proc", "/sys", "/dev", "/etc/hosts", "/etc/resolv.conf"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (bind_at(root, own[i], own[i]))
            return -1;
    snprintf(path, sizeof path, "%s/etc/passwd", root);
    snprintf(text, sizeof text, "root:x:0:0::/root:/bin/sh\nuser:x:%u:%u::%s:/bin/sh\n", uid, gid, home);
    put(path, text);
    snprintf(path, sizeof path, "%s/tmp", root);
    mkdir(path, 0755);
    if (mount("tmpfs", path, "tmpfs", 0, "mode=1777"))
        return failed("mount", "/tmp");
    snprintf(path, sizeof path, "%s%s", root, workdir);
    make(path, 1);
    if (mount_given(root))
        return -1;
    if (chdir(root) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/"))
        return failed("pivot_root", root);
    if (mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL))
        return failed("remount", "/");
    if (unshare(CLONE_NEWCGROUP) && errno != EINVAL)
        return failed("unshare", "cgroups");
    return 0;
}

static int join(pid_t pid) {
    const char *kinds[] = {"user", "cgroup", "mnt"};
    int files[3];
    char path[64];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "/proc/%d/ns/%s", pid, kinds[i]);
        files[i] = open(path, O_RDONLY | O_CLOEXEC);
    }
    for (int i = 0; i < 3; i++)
        if (files[i] < 0 || setns(files[i], 0))
            return failed("join", path);
    slurm_spank_log("pyxis: reusing existing container namespaces");
    return 0;
}

int slurm_spank_task_init(spank_t sp, int ac, char **av) {
    (void)ac, (void)av;
    uint32_t job = 0;
    char root[4096], mark[4200], text[32] = "";
    if (!given[IMAGE] && !given[NAME])
        return 0;
    spank_get_item(sp, S_JOB_ID, &job);
    snprintf(root, sizeof root, "/tmp/pyxis_%u_%s", job, given[NAME] ? given[NAME] : "unnamed");
    snprintf(mark, sizeof mark, "%s.pid", root);
    mkdir(root, 0700);
    int fd = open(mark, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (read(fd, text, sizeof text - 1) < 0)
            text[0] = 0;
        close(fd);
    }
    pid_t pid = given[NAME] ? atoi(text) : 0;
    if (pid > 0 && !kill(pid, 0)) {
        if (read_image(sp, NULL) || join(pid))
            return -1;
    } else {
        snprintf(text, sizeof text, "%d", getpid());
        put(mark, text);
        if (start(sp, root))
            return -1;
    }
    return chdir(workdir) ? failed("enter", workdir) : 0;
}
