// SPDX-License-Identifier: GPL-2.0
/*
 * PTAT: /sys/kernel/mm/ptat, see Documentation/ABI/testing/sysfs-kernel-mm-ptat.
 */
#define pr_fmt(fmt) "ptat: " fmt

#include <linux/capability.h>
#include <linux/kobject.h>
#include <linux/kstrtox.h>
#include <linux/sched.h>
#include <linux/string_helpers.h>
#include <linux/sysfs.h>
#include <trace/events/ptat.h>

#include "internal.h"

/*
 * Files belong to root; the capability is asked for again, so that an open file
 * that was handed to another process is of no use to it.
 */
static bool may_control(void)
{
	return capable(CAP_SYS_ADMIN);
}

static ssize_t self_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n",
			  current->mm ? READ_ONCE(current->mm->ptat_mode) : PTAT_MODE_OFF);
}

static ssize_t self_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
			  size_t count)
{
	unsigned int mode;
	int err;

	if (!may_control())
		return -EPERM;
	err = kstrtouint(buf, 0, &mode);
	if (err)
		return err;
	if (mode > PTAT_MODE_CHILDREN)
		return -EINVAL;
	return ptat_set_mode(mode) ?: count;
}

static const char * const levels_names[] = { "pte", "pte+pmd" };

static ssize_t levels_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", levels_names[READ_ONCE(ptat_trace_pmd_tables)]);
}

static ssize_t levels_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
			    size_t count)
{
	int i = sysfs_match_string(levels_names, buf);

	if (!may_control())
		return -EPERM;
	if (i < 0)
		return i;
	WRITE_ONCE(ptat_trace_pmd_tables, i);
	return count;
}

static const char * const marker_access_names[] = { "store", "load" };

static ssize_t marker_access_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", marker_access_names[READ_ONCE(ptat_marks_by_load)]);
}

static ssize_t marker_access_store(struct kobject *kobj, struct kobj_attribute *attr,
				   const char *buf, size_t count)
{
	int i = sysfs_match_string(marker_access_names, buf);

	if (!may_control())
		return -EPERM;
	if (i < 0)
		return i;
	WRITE_ONCE(ptat_marks_by_load, i);
	return count;
}

/* A switch that is @on. */
#define SWITCH(name, on, set)							\
static ssize_t name##_show(struct kobject *kobj, struct kobj_attribute *attr,	\
			   char *buf)						\
{										\
	return sysfs_emit(buf, "%s\n", str_on_off(on));				\
}										\
										\
static ssize_t name##_store(struct kobject *kobj, struct kobj_attribute *attr,	\
			    const char *buf, size_t count)			\
{										\
	bool value;								\
	int err;								\
										\
	if (!may_control())							\
		return -EPERM;							\
	err = kstrtobool(buf, &value);						\
	if (err)								\
		return err;							\
	set;									\
	return count;								\
}										\
static struct kobj_attribute name##_attr = __ATTR_RW_MODE(name, 0600)

SWITCH(aging, READ_ONCE(ptat_aging), WRITE_ONCE(ptat_aging, value));
SWITCH(readback, static_key_enabled(&ptat_readback_key), ptat_set_readback(value));
SWITCH(secureexec, READ_ONCE(ptat_trace_secureexec), WRITE_ONCE(ptat_trace_secureexec, value));

static ssize_t marker_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
			    size_t count)
{
	u64 cookie;
	int err;

	if (!may_control())
		return -EPERM;
	err = kstrtou64(buf, 0, &cookie);
	if (err)
		return err;
	trace_ptat_marker(ptat_mark(), cookie);
	return count;
}

static ssize_t detach_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
			    size_t count)
{
	bool detach;
	int err;

	if (!may_control())
		return -EPERM;
	err = kstrtobool(buf, &detach);
	if (err)
		return err;
	if (!detach)
		return -EINVAL;
	ptat_detach("is detached on request");
	return count;
}

static struct kobj_attribute self_attr = __ATTR_RW_MODE(self, 0600);
static struct kobj_attribute levels_attr = __ATTR_RW_MODE(levels, 0600);
static struct kobj_attribute marker_access_attr = __ATTR_RW_MODE(marker_access, 0600);
static struct kobj_attribute marker_attr = __ATTR(marker, 0200, NULL, marker_store);
static struct kobj_attribute detach_attr = __ATTR(detach, 0200, NULL, detach_store);

static struct attribute *control_attrs[] = {
	&self_attr.attr,
	&levels_attr.attr,
	&aging_attr.attr,
	&readback_attr.attr,
	&secureexec_attr.attr,
	&marker_attr.attr,
	&marker_access_attr.attr,
	&detach_attr.attr,
	NULL
};

static const struct attribute_group control_group = {
	.attrs = control_attrs,
};

#define STAT(name, value)							\
static ssize_t name##_show(struct kobject *kobj, struct kobj_attribute *attr,	\
			   char *buf)						\
{										\
	struct ptat_stat stat;							\
										\
	ptat_pool_stat(&stat);							\
	return sysfs_emit(buf, "%lu\n", value);					\
}										\
static struct kobj_attribute name##_attr = __ATTR_RO_MODE(name, 0400)

STAT(pages, stat.pages);
STAT(used, stat.used);
STAT(allocs, stat.allocs);
STAT(frees, stat.frees);
STAT(fallbacks, stat.fallbacks);

static ssize_t seq_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%llu\n", ptat_last_seq());
}

static ssize_t detached_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", ptat_detached());
}

static ssize_t detaches_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%lu\n", ptat_detaches());
}

static ssize_t secureexecs_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%lu\n", ptat_secureexecs());
}

static struct kobj_attribute seq_attr = __ATTR_RO_MODE(seq, 0400);
static struct kobj_attribute detached_attr = __ATTR_RO_MODE(detached, 0400);
static struct kobj_attribute detaches_attr = __ATTR_RO_MODE(detaches, 0400);
static struct kobj_attribute secureexecs_attr = __ATTR_RO_MODE(secureexecs, 0400);

static struct attribute *stat_attrs[] = {
	&pages_attr.attr,
	&used_attr.attr,
	&allocs_attr.attr,
	&frees_attr.attr,
	&fallbacks_attr.attr,
	&seq_attr.attr,
	&detached_attr.attr,
	&detaches_attr.attr,
	&secureexecs_attr.attr,
	NULL
};

static const struct attribute_group stat_group = {
	.name = "stat",
	.attrs = stat_attrs,
};

/* Physical addresses, as in pagemap. */
#define REGION(name, format, value)						\
static ssize_t name##_show(struct kobject *kobj, struct kobj_attribute *attr,	\
			   char *buf)						\
{										\
	if (!may_control())							\
		return -EPERM;							\
	if (ptat_detached())							\
		return -ENODEV;							\
	return sysfs_emit(buf, format "\n", value);				\
}										\
static struct kobj_attribute name##_attr = __ATTR_RO_MODE(name, 0400)

REGION(base, "%#llx", (u64)ptat_map.region);
REGION(size, "%lu", ptat_map.size);
REGION(marker_slots, "%lu", PTAT_MARKER_SLOTS);
REGION(marker_stride, "%lu", PTAT_MARKER_STRIDE);

static struct attribute *region_attrs[] = {
	&base_attr.attr,
	&size_attr.attr,
	&marker_slots_attr.attr,
	&marker_stride_attr.attr,
	NULL
};

static const struct attribute_group region_group = {
	.name = "region",
	.attrs = region_attrs,
};

static const struct attribute_group *groups[] = {
	&control_group,
	&stat_group,
	&region_group,
	NULL
};

/**
 * ptat_sysfs_init - show the files
 *
 * Without them nothing can be traced.
 */
void ptat_sysfs_init(void)
{
	struct kobject *kobj = kobject_create_and_add("ptat", mm_kobj);

	if (kobj && !sysfs_create_groups(kobj, groups))
		return;
	kobject_put(kobj);
	pr_err("no memory for the files in sysfs\n");
}
