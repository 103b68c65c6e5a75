// SPDX-License-Identifier: BSD-2-Clause
//
// Finds what may store to an entry of a page table other than through set_pte() and the like:
// stores through pointers to entries, pointers to entries that become pointers to something else,
// and calls of functions that leave it to the caller to sync. See test_entries.py.

@store@
typedef pte_t, pmd_t;
{pte_t, pmd_t} *entry;
expression value, i;
assignment operator assign;
@@
(
* *entry assign value
|
* entry[i] assign value
|
* entry->pte assign value
|
* entry->pmd assign value
|
* WRITE_ONCE(*entry, value)
|
* smp_store_release(entry, value)
)

@store_through_field@
expression holder, value;
assignment operator assign;
@@
(
* *holder->pte assign value
|
* *holder->pmd assign value
|
* *holder->ptep assign value
|
* *holder->pmdp assign value
|
* WRITE_ONCE(*holder->pte, value)
|
* WRITE_ONCE(*holder->pmd, value)
)

@becomes_another_pointer@
{pte_t, pmd_t} *entry;
type T;
@@
* (T *)entry

@field_becomes_a_pointer@
{pte_t, pmd_t} *entry;
@@
(
* &entry->pte
|
* &entry->pmd
)

@field_of_a_holder_becomes_a_pointer@
expression holder;
type T;
@@
(
* (T *)holder->pte
|
* (T *)holder->pmd
|
* (T *)holder->ptep
|
* &holder->pte->pte
|
* &holder->pmd->pmd
)

@written_as_bytes_or_words@
{pte_t, pmd_t} *entry;
identifier f =~ "^(__)?(mem(set|cpy|move)|(clear|copy)_page|copy_(from|to)_user|(try_)?(cmp)?xchg.*|set_64bit|(test_and_)?(set|clear|change)_bit|atomic.*)$";
expression list before, after;
@@
* f(before, entry, after)

// Leaves it to the caller to sync.
@without_sync@
identifier f =~ "^((__|native_)set_pte(_atomic)?|set_pte_atomic|native_(set_pmd|(pte|pmd)_clear|(local_)?(ptep|pmdp)_get_and_clear)|__set_ptes|wrprotect_ptes|(get_and_)?clear_full_ptes|__ptep_(get_and_clear(_full)?|set_wrprotect))$";
expression list arguments;
@@
* f(arguments)
