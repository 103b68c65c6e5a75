// SPDX-License-Identifier: BSD-2-Clause
//
// Finds calls of functions that leave it to their callers to tell PTAT what they did to a table,
// where a way leads on to the end of the caller, or past an unlock or a flush, and PTAT is not told.
// test_entries.py puts in the names: of those functions for LEFT, of what tells for TELL.

@told_at_once@
identifier left =~ "^(LEFT)$";
expression entry;
position p;
@@
ptat_mirror(entry, <+... left@p(...) ...+>)

@never_told exists@
identifier left =~ "^(LEFT)$";
identifier caller !~ "^(LEFT)$";
position p != told_at_once.p;
@@
caller(...)
{
... when any
* left@p(...)
... when != TELL(...)
}

@told_too_late exists@
identifier left =~ "^(LEFT)$";
identifier over =~ "^((pte_unmap|pte_spin|spin)_unlock|tlb_flush_mmu(_tlbonly)?|tlb_finish_mmu|flush_tlb_(mm|page|range))$";
position p != told_at_once.p;
@@
* left@p(...)
... when != TELL(...)
over(...)
