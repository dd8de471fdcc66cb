// The page that live_page() gives, put into the program.
    .section .rodata
    .global lockstep_live_page_begin
    .global lockstep_live_page_end
lockstep_live_page_begin:
    .incbin "live_page.html"
lockstep_live_page_end:
    .byte 0
    .section .note.GNU-stack,"",@progbits
