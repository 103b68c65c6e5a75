// SPDX-License-Identifier: BSD-2-Clause
//
// Finds calls of functions that leave it to their callers to sync what they did to a table, where a
// way leads on to the end of the caller, or past an unlock or a flush, without a sync.
// test_entries.py puts in the names: of those functions for LEFT, of what syncs for SYNC.

@never_synced exists@
identifier left =~ "^(LEFT)$";
identifier caller !~ "^(LEFT)$";
position p;
@@
caller(...)
{
... when any
* left@p(...)
... when != SYNC(...)
}

@synced_too_late exists@
identifier left =~ "^(LEFT)$";
identifier over =~ "^((pte_unmap|pte_spin|spin)_unlock|tlb_flush_mmu(_tlbonly)?|tlb_finish_mmu|flush_tlb_(mm|page|range))$";
position p;
@@
* left@p(...)
... when != SYNC(...)
over(...)
