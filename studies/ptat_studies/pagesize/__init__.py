# SPDX-License-Identifier: BSD-2-Clause
"""``ptat pagesize``: which page size suits a program, its memory and where its pages come from.

The study of Park and Bahn, Modeling and Analysis of the Page Sizing Problem for NVM Storage in
Virtualized Systems, IEEE Access 9 (2021), for traces of one's own. docs/studies.md says how to
read it. The way of a trace:

accesses (access_text: one of its formats) → references: to pages of any size
→ simulation (paging: LRU and CLOCK): what TLB and memory miss, for each page size
→ workload (fits, memory_time): functions of the page size, and the time of an access
→ study (machines: virtual machines to advise) → tables, figures
"""
