{{/*
The operator's pod has two containers. `frontend` parses HTTP of strangers and has no token; `operator` has the token of the
ServiceAccount and opens no port. They share a directory with a Unix socket, which the frontend cannot replace.
*/}}

{{/* The operator's container: the liveness check runs inside, so that a failure of the frontend does not restart it. */}}
{{- define "allranks.operatorProbes" -}}
# Start-up can take as long as listing the pods of a large cluster.
startupProbe:
  exec:
    command: [python3, -m, allranks.operator.health_check, /tmp/check.sock]
  periodSeconds: 2
  timeoutSeconds: {{ .Values.probes.timeoutSeconds }}
  failureThreshold: {{ .Values.probes.startupFailureThreshold }}
livenessProbe:
  exec:
    command: [python3, -m, allranks.operator.health_check, /tmp/check.sock]
  periodSeconds: {{ .Values.probes.livenessPeriodSeconds }}
  timeoutSeconds: {{ .Values.probes.timeoutSeconds }}
  failureThreshold: {{ .Values.probes.livenessFailureThreshold }}
{{- end }}

{{- define "allranks.operatorMounts" -}}
- name: socket
  mountPath: /run/allranks
- name: token
  mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  readOnly: true
{{- end }}

{{- define "allranks.frontend" -}}
- name: frontend
  image: {{ include "allranks.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [allranks, operator-frontend]
  env:
    - name: ALLRANKS_SOCKET
      value: /run/allranks/operator.sock
    - name: ALLRANKS_PORT
      value: "8080"
    - name: ALLRANKS_PROBE_PORT
      value: "8082"
    {{- if include "allranks.reports" . }}
    - name: ALLRANKS_REPORT_PORT
      value: "8081"
    {{- end }}
    - name: ALLRANKS_LOG_LEVEL
      value: {{ .Values.settings.logLevel }}
    - name: ALLRANKS_LOG_FORMAT
      value: {{ .Values.settings.logFormat }}
  ports:
    - name: http
      containerPort: 8080
    # Not in the Service or the NetworkPolicy: clients of the other ports cannot delay probes.
    - name: probes
      containerPort: 8082
    {{- if include "allranks.reports" . }}
    - name: reports
      containerPort: 8081
    {{- end }}
  # About this process alone: it serves while the operator restarts.
  livenessProbe:
    httpGet:
      path: /livez
      port: probes
    periodSeconds: {{ .Values.probes.livenessPeriodSeconds }}
    timeoutSeconds: {{ .Values.probes.timeoutSeconds }}
    failureThreshold: {{ .Values.probes.livenessFailureThreshold }}
  # Of the operator, over the socket: the pod is ready when both containers are.
  readinessProbe:
    httpGet:
      path: /readyz
      port: probes
    periodSeconds: 5
    timeoutSeconds: {{ .Values.probes.timeoutSeconds }}
  {{- with .Values.securityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.frontend.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
    # Connecting needs no write access to the directory.
    - name: socket
      mountPath: /run/allranks
      readOnly: true
{{- end }}

{{- define "allranks.frontendVolumes" -}}
- name: socket
  emptyDir:
    sizeLimit: 1Mi
# What automountServiceAccountToken adds to every container, for the operator's container only.
- name: token
  projected:
    sources:
      - serviceAccountToken:
          path: token
          expirationSeconds: 3607
      - configMap:
          name: kube-root-ca.crt
          items:
            - key: ca.crt
              path: ca.crt
      - downwardAPI:
          items:
            - path: namespace
              fieldRef:
                fieldPath: metadata.namespace
{{- end }}
