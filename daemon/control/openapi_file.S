// The description that GET /control/openapi.json gives, put into the program.
    .section .rodata
    .global lockstep_openapi
lockstep_openapi:
    .incbin "openapi.json"
    .byte 0
    .section .note.GNU-stack,"",@progbits
