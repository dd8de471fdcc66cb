/* The digits file inside the program, so that a run needs no data folder. */
    .section .rodata
    .global lockstep_digits_csv_begin
    .global lockstep_digits_csv_end
lockstep_digits_csv_begin:
    .incbin LOCKSTEP_DIGITS_CSV
lockstep_digits_csv_end:
    .byte 0
    .section .note.GNU-stack,"",@progbits
