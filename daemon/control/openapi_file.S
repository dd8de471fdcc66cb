// The description that GET /control/openapi.json gives, put into the program.
    .section .rodata
    .global lockstep_openapi_begin
    .global lockstep_openapi_end
lockstep_openapi_begin:
    .incbin "openapi.json"
lockstep_openapi_end:
    .byte 0
    .section .note.GNU-stack,"",@progbits
